"""Settings of other trainers brought over: sd-scripts, musubi-tuner and the GUI of kohya_ss."""
