"""Encodes captions with LLaVA-Llama-3 and CLIP, as diffusers' ``HunyuanVideoPipeline`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer, LlamaModel, PreTrainedTokenizerFast

from backend.families.files.base_model import BaseModelFiles
from backend.families.hunyuan_video.facts import TEMPLATE, TEMPLATE_TOKENS
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions

_LAYER = -3
"""Of the states behind each of Llama's layers, those that the denoiser reads."""


@dataclass
class TextStack:
    """Llama for the sequence, CLIP for the pooled vector."""

    llama: LlamaModel
    llama_tokenizer: Any
    clip: CLIPTextModel
    clip_tokenizer: Any

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """Llama and CLIP of the model with their tokenizers. Refused when a part is missing or broken, named."""
        part = facts.part
        return cls(
            model_parts.encoder(LlamaModel, base, loading, part("text_encoder")),
            # the file as it is: transformers' class for Llama would make a tokenizer of another kind of it
            model_parts.tokenizer(PreTrainedTokenizerFast, base, part("tokenizer")),
            model_parts.encoder(CLIPTextModel, base, loading, part("text_encoder_2")),
            model_parts.tokenizer(CLIPTokenizer, base, part("tokenizer_2")),
        )

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser receives for each caption, on the encoders' device and in their dtype.

        text_length: states that are kept at most. Each entry: ``prompt_embeds`` (L, D) of Llama, of the caption's
        tokens and of what the template has behind it, real tokens alone, and ``pooled`` (P,) of CLIP's 77 tokens.
        """
        pooled = self._clip(list(captions))
        return [
            {"prompt_embeds": self._llama(caption, text_length), "pooled": pooled[i]}
            for i, caption in enumerate(captions)
        ]

    def _llama(self, caption: str, text_length: int) -> Tensor:
        # not format: a caption may hold braces
        asked = TEMPLATE.replace("{}", caption)
        tokens = self.llama_tokenizer(
            [asked], max_length=text_length + TEMPLATE_TOKENS, truncation=True, return_tensors="pt"
        )
        ids = tokens.input_ids.to(self.llama.device)
        # padding behind the caption would change nothing: no token sees what is behind it
        states = self.llama(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[_LAYER]
        return states[0, TEMPLATE_TOKENS:].to(self.llama.dtype)

    def _clip(self, captions: list[str]) -> Tensor:
        tokens = self.clip_tokenizer(
            captions, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
        )
        out = self.clip(tokens.input_ids.to(self.clip.device), output_hidden_states=False).pooler_output
        return out.to(self.clip.dtype)
