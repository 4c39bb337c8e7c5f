"""The autoencoder of Qwen-Image and Anima, as diffusers' pipelines use it: pictures are films of one frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.local import load_part
from backend.models.sources import open_part
from backend.models.spec import Part


@dataclass
class VaeStack:
    """The autoencoder, with the mean and deviation of each channel of its latent."""

    vae: AutoencoderKLQwenImage

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Latents (B, C, h, w) float32 of pixels (B, 3, H, W) in [-1, 1]: the posterior's mode, normalised.

        The mode and not a sample, so that the same picture always gives the same latent.
        """
        frames = pixels.to(self.vae.device, self.vae.dtype).unsqueeze(2)
        mode = self.vae.encode(frames).latent_dist.mode()[:, :, 0].float()
        return (mode - self._of("latents_mean")) / self._of("latents_std")

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) float32 in about [-1, 1] of latents (B, C, h, w) as `encode` gives them."""
        raw = latents.to(self.vae.device).float() * self._of("latents_std") + self._of("latents_mean")
        frames = raw.to(self.vae.dtype).unsqueeze(2)
        return self.vae.decode(frames, return_dict=False)[0][:, :, 0].float()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> VaeStack:
        """Move the weights; returns itself."""
        # diffusers warns at every call that names a dtype, None included
        wanted = {"device": device, "dtype": dtype}
        self.vae.to(**{name: value for name, value in wanted.items() if value is not None})
        return self

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.vae.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are kept in."""
        return self.vae.dtype

    def _of(self, name: str) -> Tensor:
        """A figure of each channel, (C, 1, 1) float32."""
        return torch.tensor(self.vae.config[name], device=self.vae.device).reshape(-1, 1, 1)


def load(base: Base | Path, part: Part, loading: Loading) -> VaeStack:
    """The VAE that is `part` of the model. Refused when it is missing or broken, named."""
    source = open_part(Base.at(base, loading.variant), part)
    return VaeStack(load_part(AutoencoderKLQwenImage, source, part, loading.plain()).eval())
