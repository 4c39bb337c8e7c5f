"""Encodes captions with Qwen2.5-VL, asked through a template, as diffusers' ``QwenImagePipeline`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from backend.families.files.base_model import BaseModelFiles
from backend.families.qwen_image.facts import MOST_TOKENS, TEMPLATE, TEMPLATE_TOKENS
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions


@dataclass
class TextStack:
    """The language model of Qwen2.5-VL; its eyes are not asked for captions alone."""

    qwen: Qwen2_5_VLForConditionalGeneration
    tokenizer: Any

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """Qwen2.5-VL and its tokenizer. Refused when a part is missing or broken, named."""
        model = model_parts.encoder(Qwen2_5_VLForConditionalGeneration, base, loading, facts.part("text_encoder"))
        return cls(model, model_parts.tokenizer(Qwen2Tokenizer, base, facts.part("tokenizer")))

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser receives of each caption, on the encoder's device and in its dtype.

        text_length: states that are kept at most. Each entry: ``prompt_embeds`` (L, D), the last states of the
        caption's tokens and of what the template has behind it; real tokens alone.
        """
        return [{"prompt_embeds": self._one(caption, text_length)} for caption in captions]

    def _one(self, caption: str, text_length: int) -> Tensor:
        # not format: a caption may hold braces
        asked = TEMPLATE.replace("{}", caption)
        tokens = self.tokenizer(
            [asked], max_length=MOST_TOKENS + TEMPLATE_TOKENS, truncation=True, return_tensors="pt"
        ).to(self.qwen.device)
        # the states alone: the head over the vocabulary would take more memory than all of them
        states = self.qwen.model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
        return states[0, TEMPLATE_TOKENS:][:text_length].to(self.qwen.dtype)
