"""Qwen-Image's text (Qwen2.5-VL, asked through a template) and VAE, as diffusers' ``QwenImagePipeline`` uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from backend.models import load
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.qwen_image.facts import FACTS, MOST_TOKENS, TEMPLATE, TEMPLATE_TOKENS
from backend.models.qwen_vae import QwenVaeStack


@dataclass
class TextStack:
    """The language model of Qwen2.5-VL; its eyes are not asked for captions alone."""

    qwen: Qwen2_5_VLForConditionalGeneration
    tokenizer: Any

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser is told by each caption, on the encoder's device and in its dtype.

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


def load_text(base: Base | Path, loading: Loading) -> TextStack:
    """Qwen2.5-VL and its tokenizer. Refused when a part is missing or broken, named."""
    base = Base.at(base, loading.variant)
    model = load.encoder(Qwen2_5_VLForConditionalGeneration, base, loading, FACTS.part("text_encoder"))
    return TextStack(model, load.tokenizer(Qwen2Tokenizer, base, FACTS.part("tokenizer")))


def load_vae(base: Base | Path, loading: Loading) -> QwenVaeStack:
    """The VAE of the model. Refused when it is missing or broken, named."""
    return QwenVaeStack.load(base, loading, FACTS.part("vae"))
