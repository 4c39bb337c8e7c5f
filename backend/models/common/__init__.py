"""Shares code between model families: loading, the VAEs, attention, the forward of a transformer. Torch."""
