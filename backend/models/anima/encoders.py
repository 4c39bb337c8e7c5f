"""Encodes captions with Qwen3 and the conditioner that asks it with T5's ids, as `AnimaModularPipeline` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from diffusers import AnimaTextConditioner
from torch import Tensor
from transformers import Qwen2Tokenizer, Qwen3Model, T5TokenizerFast

from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions


@dataclass
class TextStack:
    """Qwen3, whose last states the conditioner reads with a query for each token of T5's tokenizer."""

    qwen: Qwen3Model
    tokenizer: Any
    conditioner: AnimaTextConditioner
    t5_tokenizer: Any

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """Qwen3, the conditioner and both tokenizers. Refused when a part is missing or broken, named."""
        part = facts.part
        return cls(
            model_parts.encoder(Qwen3Model, base, loading, part("text_encoder")),
            model_parts.tokenizer(Qwen2Tokenizer, base, part("tokenizer")),
            model_parts.encoder(AnimaTextConditioner, base, loading.plain(), part("text_conditioner")),
            model_parts.tokenizer(T5TokenizerFast, base, part("tokenizer_2")),
        )

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser receives of each caption, on the encoders' device and in their dtype.

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
