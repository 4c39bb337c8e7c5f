"""FLUX's text encoders (T5 and CLIP) and VAE, as diffusers' ``FluxPipeline`` uses them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from backend.models import load
from backend.models.base import Base
from backend.models.flux import facts
from backend.models.loading import Loading
from backend.models.vae import VaeStack

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


def load_text(base: Base | Path, loading: Loading) -> TextStack:
    """T5 and CLIP of the model with their tokenizers. Refused when a part is missing or broken, named."""
    base, part = Base.at(base, loading.variant), facts.FACTS.part
    return TextStack(
        load.encoder(CLIPTextModel, base, loading, part("text_encoder")),
        load.tokenizer(CLIPTokenizer, base, part("tokenizer")),
        load.encoder(T5EncoderModel, base, loading, part("text_encoder_2")),
        load.tokenizer(T5TokenizerFast, base, part("tokenizer_2")),
    )


def load_vae(base: Base | Path, loading: Loading) -> VaeStack:
    """The VAE of the model. Refused when it is missing or broken, named."""
    return VaeStack.load(base, loading, facts.FACTS.part("vae"))
