"""Encodes pictures and decodes latents with the autoencoder of a base model, as pipelines do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from backend.families.files.base_model import BaseModelFiles
from backend.families.files.parts import Part
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import open_part
from backend.models.common.weight_loading import load_part


@dataclass
class VaeStack:
    """The autoencoder, with the scale of its latent, and the shift where it has one."""

    vae: Any

    @classmethod
    def load(cls, base: BaseModelFiles | Path, loading: LoadOptions, part: Part) -> Self:
        """The VAE that is `part` of the model. Refused when it is missing or broken, named."""
        source = open_part(BaseModelFiles.at(base, loading.variant), part)
        return cls(load_part(cls.model(), source, part, loading.plain()).eval())

    @classmethod
    def model(cls) -> Any:
        """diffusers' class."""
        return AutoencoderKL

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Latents (B, C, h, w) float32 of pixels (B, 3, H, W) in [-1, 1]: the posterior's mode, shifted and scaled.

        The mode and not a sample, so that the same picture always gives the same latent.
        """
        posterior = self.vae.encode(pixels.to(self.device, self.dtype)).latent_dist
        return (posterior.mode().float() - self._shift) * self.vae.config.scaling_factor

    def encode_row(self, pixels: Tensor) -> dict[str, Tensor]:
        """All that the denoiser reads of one picture (3, H, W) or clip (3, F, H, W) in [-1, 1], to be cached.

        ``latent`` is what is trained on, as `encode` gives it; a family that starts from a picture adds more, each of
        which is put with the row's text under its name.
        """
        return {"latent": self.encode(pixels[None])[0]}

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) float32 in about [-1, 1] of latents (B, C, h, w) as `encode` gives them."""
        raw = latents.float() / self.vae.config.scaling_factor + self._shift
        return self.vae.decode(raw.to(self.device, self.dtype), return_dict=False)[0].float()

    def for_decoding(self) -> Self:
        """What decoding needs of it; returns itself."""
        return self

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
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

    @property
    def _shift(self) -> float:
        return self.vae.config.shift_factor or 0.0
