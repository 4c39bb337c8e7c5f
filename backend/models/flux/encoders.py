"""Encodes captions with FLUX's text encoders (T5 and CLIP), as diffusers' ``FluxPipeline`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions


@dataclass
class TextStack:
    """T5 for the sequence, CLIP for the pooled vector."""

    clip: CLIPTextModel
    clip_tokenizer: Any
    t5: T5EncoderModel
    t5_tokenizer: Any

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """T5 and CLIP of the model with their tokenizers. Refused when a part is missing or broken, named."""
        part = facts.part
        return cls(
            model_parts.encoder(CLIPTextModel, base, loading, part("text_encoder")),
            model_parts.tokenizer(CLIPTokenizer, base, part("tokenizer")),
            model_parts.encoder(T5EncoderModel, base, loading, part("text_encoder_2")),
            model_parts.tokenizer(T5TokenizerFast, base, part("tokenizer_2")),
        )

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser receives of each caption, on the encoders' device and in their dtype.

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
