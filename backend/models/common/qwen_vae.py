"""Encodes and decodes with the autoencoder of Qwen-Image and Anima, for which a picture is a video of one frame."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from backend.models.common.vae import VaeStack


class QwenVaeStack(VaeStack):
    """The autoencoder, with the mean and deviation of each channel of its latent."""

    @classmethod
    def model(cls) -> Any:
        """diffusers' class."""
        return AutoencoderKLQwenImage

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Latents (B, C, h, w) float32 of pixels (B, 3, H, W) in [-1, 1]: the posterior's mode, normalised."""
        frames = pixels.to(self.device, self.dtype).unsqueeze(2)
        mode = self.vae.encode(frames).latent_dist.mode()[:, :, 0].float()
        return (mode - self._of("latents_mean")) / self._of("latents_std")

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) float32 in about [-1, 1] of latents (B, C, h, w) as `encode` gives them."""
        raw = latents.to(self.device).float() * self._of("latents_std") + self._of("latents_mean")
        frames = raw.to(self.dtype).unsqueeze(2)
        return self.vae.decode(frames, return_dict=False)[0][:, :, 0].float()

    def _of(self, name: str) -> Tensor:
        """A figure of each channel, (C, 1, 1) float32."""
        return torch.tensor(self.vae.config[name], device=self.device).reshape(-1, 1, 1)
