"""FLUX's text encoders (T5 and CLIP) and VAE, as diffusers' ``FluxPipeline`` uses them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from backend.models.base import Base
from backend.models.flux import facts
from backend.models.loading import Loading
from backend.models.local import load_part
from backend.models.sources import open_part, tokenizer_folder
from backend.refused import Refused

log = logging.getLogger(__name__)


@dataclass
class TextStack:
    """T5 for the sequence, CLIP for the pooled vector."""

    clip: CLIPTextModel
    clip_tokenizer: Any
    t5: T5EncoderModel
    t5_tokenizer: Any

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser is told by each caption, on the encoders' device and in their dtype.

        text_length: T5 tokens that every caption is padded or cut to. Each entry: ``prompt_embeds`` (text_length, D)
        of T5 (its padding is attended, as in ``FluxPipeline``), ``pooled`` (P,) of CLIP, which reads 77 tokens, and
        ``length`` (), on the CPU: the T5 tokens that are not padding.
        """
        sequence, lengths = self._t5(list(captions), text_length)
        pooled = self._clip(list(captions))
        return [{"prompt_embeds": sequence[i], "pooled": pooled[i], "length": lengths[i]} for i in range(len(captions))]

    def _t5(self, captions: list[str], text_length: int) -> tuple[Tensor, Tensor]:
        tokens = self.t5_tokenizer(
            captions, padding="max_length", max_length=text_length, truncation=True, return_tensors="pt"
        )
        out = self.t5(tokens.input_ids.to(self.t5.device), output_hidden_states=False)[0]
        return out.to(self.t5.dtype), tokens.attention_mask.sum(dim=1)

    def _clip(self, captions: list[str]) -> Tensor:
        length = self.clip_tokenizer.model_max_length
        tokens = self.clip_tokenizer(
            captions, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        )
        out = self.clip(tokens.input_ids.to(self.clip.device), output_hidden_states=False).pooler_output
        return out.to(self.clip.dtype)


@dataclass
class VaeStack:
    """The autoencoder, with FLUX's shift and scale of the latent."""

    vae: AutoencoderKL

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Latents (B, C, h, w) float32 of pixels (B, 3, H, W) in [-1, 1]: the posterior's mode, shifted and scaled.

        The mode and not a sample, so that the same picture always gives the same latent.
        """
        posterior = self.vae.encode(pixels.to(self.vae.device, self.vae.dtype)).latent_dist
        return (posterior.mode().float() - self._shift) * self._scale

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) float32 in about [-1, 1] of latents (B, C, h, w) as `encode` gives them."""
        raw = latents.float() / self._scale + self._shift
        return self.vae.decode(raw.to(self.vae.device, self.vae.dtype), return_dict=False)[0].float()

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

    @property
    def _shift(self) -> float:
        return self.vae.config.shift_factor or 0.0

    @property
    def _scale(self) -> float:
        return self.vae.config.scaling_factor


def load_text(base: Base | Path, loading: Loading) -> TextStack:
    """T5 and CLIP of the model with their tokenizers. Refused when a part is missing or broken, named."""
    base = Base.at(base, loading.variant)

    def encoder(cls: Any, name: str) -> Any:
        part = facts.FACTS.part(name)
        return load_part(cls, open_part(base, part), part, loading).eval()

    return TextStack(
        encoder(CLIPTextModel, "text_encoder"),
        _tokenizer(CLIPTokenizer, base, "tokenizer"),
        encoder(T5EncoderModel, "text_encoder_2"),
        _tokenizer(T5TokenizerFast, base, "tokenizer_2"),
    )


def load_vae(base: Base | Path, loading: Loading) -> VaeStack:
    """The VAE of the model. Refused when it is missing or broken, named."""
    part = facts.FACTS.part("vae")
    source = open_part(Base.at(base, loading.variant), part)
    return VaeStack(load_part(AutoencoderKL, source, part, loading.plain()).eval())


def _tokenizer(cls: Any, base: Base, name: str) -> Any:
    part = facts.FACTS.part(name)
    folder = tokenizer_folder(base, part)
    try:
        return cls.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        text = f"{part.title} in {folder} can't be loaded: {error}"
        raise Refused(text, f"Copy it again: {part.where}.", f"model.{part.setting}") from error
