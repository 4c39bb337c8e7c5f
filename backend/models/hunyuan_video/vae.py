"""Encodes clips and pictures with HunyuanVideo's autoencoder, and decodes their latents, as its pipelines do."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import Tensor

from backend.models.common.vae import VaeStack


class HunyuanVaeStack(VaeStack):
    """The autoencoder. A picture is a clip of one frame.

    diffusers' class cuts clips of more than 16 frames into pieces of 17 that overlap, so that the memory is that of one
    piece however long the clip is; ``vae_tiling`` cuts these into tiles too.
    """

    @classmethod
    def model(cls) -> Any:
        """diffusers' class."""
        return AutoencoderKLHunyuanVideo

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Latents (B, C, f, h, w) float32 of clips (B, 3, F, H, W), or pictures (B, 3, H, W), in [-1, 1].

        The posterior's mode, scaled.
        """
        clips = pixels if pixels.ndim == 5 else pixels.unsqueeze(2)
        return super().encode(clips)

    @property
    def _shift(self) -> float:
        return 0.0
