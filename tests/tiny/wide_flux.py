"""Builds a tiny FLUX whose heads are as wide as the kernels of a GPU need."""

from __future__ import annotations

import torch

from tests.tiny.shapes import denoiser_with_lora


def wide_denoiser() -> torch.nn.Module:
    """Heads of 64: flash kernels and flex want at least 16, FA3 and FA4 64 or more."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=64,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=24,
        guidance_embeds=True,
        axes_dims_rope=(16, 24, 24),
    )
    return denoiser_with_lora(model=model)
