"""Encodes and decodes with the autoencoder of Wan, a few frames at a time."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from backend.models.common.vae import VaeStack


class WanVaeStack(VaeStack):
    """The autoencoder, with the mean and deviation of each channel of its latent.

    It works through a clip by four frames, of which each piece sees what came before it alone: memory grows with the
    size of the frames and not with their number.
    """

    @classmethod
    def model(cls) -> Any:
        """diffusers' class."""
        return AutoencoderKLWan

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Latents (B, C, f, h, w) float32 of clips (B, 3, F, H, W), or pictures (B, 3, H, W), in [-1, 1].

        The posterior's mode, normalised.
        """
        frames = pixels if pixels.ndim == 5 else pixels.unsqueeze(2)
        mode = self.vae.encode(frames.to(self.device, self.dtype)).latent_dist.mode().float()
        return (mode - self._of("latents_mean")) / self._of("latents_std")

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Clips (B, 3, F, H, W) float32 in [-1, 1] of latents (B, C, f, h, w) as `encode` gives them."""
        raw = latents.to(self.device).float() * self._of("latents_std") + self._of("latents_mean")
        return self.vae.decode(raw.to(self.dtype), return_dict=False)[0].float()

    def _of(self, name: str) -> Tensor:
        """A figure of each channel, (C, 1, 1, 1) float32."""
        return torch.tensor(self.vae.config[name], device=self.device).reshape(-1, 1, 1, 1)
