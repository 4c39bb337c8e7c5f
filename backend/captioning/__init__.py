"""Writes captions with a model that a person has on disk: BLIP, BLIP-2, Florence-2 and Qwen-VL."""
