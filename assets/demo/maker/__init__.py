"""Draws the demo's small world and trains the demo's small FLUX pipeline on it."""
