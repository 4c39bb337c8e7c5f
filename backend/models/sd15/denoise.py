"""Stable Diffusion 1.5's forward alone."""

from backend.models.unet.blocks import block_lists, install, running_order
from backend.models.unet.denoise import predict

__all__ = ["block_lists", "install", "predict", "running_order"]
