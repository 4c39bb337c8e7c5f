"""Encodes captions with umT5, as diffusers' ``WanPipeline`` does."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import ftfy
import torch
from torch import Tensor
from transformers import T5TokenizerFast, UMT5EncoderModel

from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions


@dataclass
class TextStack:
    """The encoder of umT5-XXL."""

    umt5: UMT5EncoderModel
    tokenizer: Any

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """umT5 and its tokenizer. Refused when a part is missing or broken, named."""
        model = model_parts.encoder(UMT5EncoderModel, base, loading, facts.part("text_encoder"))
        return cls(model, model_parts.tokenizer(T5TokenizerFast, base, facts.part("tokenizer")))

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser receives for each caption, on the encoder's device and in its dtype.

        text_length: tokens that a caption is cut to. Each entry: ``prompt_embeds`` (L, D), real tokens alone; the zeros
        behind them, which the transformer sees too, are not kept.
        """
        return [{"prompt_embeds": self._one(caption, text_length)} for caption in captions]

    def _one(self, caption: str, text_length: int) -> Tensor:
        cut = {"max_length": text_length, "truncation": True, "return_tensors": "pt"}
        ids = self.tokenizer([cleaned(caption)], **cut).input_ids.to(self.umt5.device)
        return self.umt5(input_ids=ids).last_hidden_state[0].to(self.umt5.dtype)


def cleaned(caption: str) -> str:
    """The caption as the model was trained on it: broken letters repaired, no HTML entities, single blanks."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(caption)))).strip()
