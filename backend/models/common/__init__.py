"""What the code of several model families shares: loading, the VAEs, attention, the forward of a transformer. Torch."""
