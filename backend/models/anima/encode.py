"""Anima's text (Qwen3 and the conditioner that asks it with T5's ids) and VAE, as `AnimaModularPipeline` uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AnimaTextConditioner, AutoencoderKLQwenImage
from torch import Tensor
from transformers import Qwen2Tokenizer, Qwen3Model, T5TokenizerFast

from backend.models.anima.facts import FACTS
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.local import load_part
from backend.models.sources import open_part, tokenizer_folder
from backend.refused import Refused


@dataclass
class TextStack:
    """Qwen3, whose last states the conditioner reads with a query for each token of T5's tokenizer."""

    qwen: Qwen3Model
    tokenizer: Any
    conditioner: AnimaTextConditioner
    t5_tokenizer: Any

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser is told by each caption, on the encoders' device and in their dtype.

        text_length: tokens that a caption is cut to, in either tokenizer. Each entry: ``prompt_embeds`` (L, D), a row
        for each of T5's tokens; the zeros behind them, which the transformer sees too, are not kept.
        """
        return [{"prompt_embeds": self._one(caption, text_length)} for caption in captions]

    def _one(self, caption: str, text_length: int) -> Tensor:
        cut = {"max_length": text_length, "truncation": True, "return_tensors": "pt"}
        device = self.qwen.device
        ids = self.tokenizer([caption], **cut).input_ids.to(device)
        queries = self.t5_tokenizer([caption], **cut).input_ids.to(device)
        if ids.shape[1]:
            states = self.qwen(input_ids=ids.long(), output_hidden_states=False).last_hidden_state
        else:
            # Qwen's tokenizer adds nothing to an empty caption. The pipeline then has one masked state of zeros: its
            # keys and values are zero, so that attention to it gives what attention to nothing does.
            states = torch.zeros(1, 1, self.conditioner.config.source_dim, device=device)
        rows = self.conditioner(states.to(self.conditioner.dtype), queries.long())
        return rows[0, : queries.shape[1]].to(self.qwen.dtype)


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


def load_text(base: Base | Path, loading: Loading) -> TextStack:
    """Qwen3, the conditioner and both tokenizers. Refused when a part is missing or broken, named."""
    base = Base.at(base, loading.variant)

    def part(cls: Any, name: str, how: Loading) -> Any:
        return load_part(cls, open_part(base, FACTS.part(name)), FACTS.part(name), how).eval()

    return TextStack(
        part(Qwen3Model, "text_encoder", loading),
        _tokenizer(Qwen2Tokenizer, base, "tokenizer"),
        part(AnimaTextConditioner, "text_conditioner", loading.plain()),
        _tokenizer(T5TokenizerFast, base, "tokenizer_2"),
    )


def load_vae(base: Base | Path, loading: Loading) -> VaeStack:
    """The VAE of the model. Refused when it is missing or broken, named."""
    part = FACTS.part("vae")
    source = open_part(Base.at(base, loading.variant), part)
    return VaeStack(load_part(AutoencoderKLQwenImage, source, part, loading.plain()).eval())


def _tokenizer(cls: Any, base: Base, name: str) -> Any:
    part = FACTS.part(name)
    folder = tokenizer_folder(base, part)
    try:
        return cls.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        text = f"{part.title} in {folder} can't be loaded: {error}"
        raise Refused(text, f"Copy it again: {part.where}.", f"model.{part.setting}") from error
