"""Encodes captions with SD3's text encoders (two CLIP, and T5), as diffusers' ``StableDiffusion3Pipeline`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from backend.families.files.base_model import BaseModelFiles
from backend.families.sd3.facts import CLIP_TOKENS
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions

Clip = CLIPTextModel | CLIPTextModelWithProjection


@dataclass
class TextStack:
    """CLIP-L and OpenCLIP bigG side by side, then T5, or zeros in its place. width: of T5's states."""

    clips: tuple[Clip, Clip]
    clip_tokenizers: tuple[CLIPTokenizer, CLIPTokenizer]
    t5: T5EncoderModel | None
    t5_tokenizer: T5TokenizerFast | None
    width: int

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """All encoders that the model has, with their tokenizers. Refused when a part is missing or broken, named."""
        part = facts.part
        place, t5 = base.place(part("text_encoder")), part("text_encoder_3")
        # Single files have no projection of the smaller CLIP: its pooled vector is taken as it is (Stability-AI/sd3.5
        # ``sd3_infer.py``, ``return_projected_pooled=False``); folders hold one, which is applied.
        first = CLIPTextModelWithProjection if place is None or place.layout is None else CLIPTextModel
        clips = zip(("text_encoder", "text_encoder_2"), (first, CLIPTextModelWithProjection), strict=True)
        has_t5 = base.place(t5) is not None
        return cls(
            tuple(model_parts.encoder(model, base, loading, part(name)) for name, model in clips),
            tuple(model_parts.tokenizer(CLIPTokenizer, base, part(name)) for name in ("tokenizer", "tokenizer_2")),
            model_parts.encoder(T5EncoderModel, base, loading, t5) if has_t5 else None,
            model_parts.tokenizer(T5TokenizerFast, base, part("tokenizer_3")) if has_t5 else None,
            base.config(part("transformer"))["joint_attention_dim"],
        )

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser receives of each caption, on the encoders' device and in their dtype.

        text_length: T5 tokens that every caption is padded or cut to. Each entry: ``prompt_embeds`` (77 + text_length,
        D), the states before the last layer of both CLIP encoders, filled up with zeros to T5's width, then T5's;
        padding is attended in all. ``pooled`` (P,), of both CLIP encoders. ``length`` (), on the CPU: the tokens that
        are not T5's padding.
        """
        encoded = [self._clip(number, captions) for number in (0, 1)]
        words = torch.cat([states for states, _ in encoded], dim=-1)
        pooled = torch.cat([vector for _, vector in encoded], dim=-1)
        sequence, lengths = self._t5(list(captions), text_length, words)
        filled = torch.nn.functional.pad(words, (0, self.width - words.shape[-1]))
        states = torch.cat([filled, sequence.to(filled.dtype)], dim=1)
        return [
            {"prompt_embeds": states[i], "pooled": pooled[i], "length": CLIP_TOKENS + lengths[i]}
            for i in range(len(captions))
        ]

    def _clip(self, number: int, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """States (B, 77, D) before the last layer, and the pooled vectors (B, D)."""
        clip, tokenizer = self.clips[number], self.clip_tokenizers[number]
        tokens = tokenizer(
            list(captions), padding="max_length", max_length=CLIP_TOKENS, truncation=True, return_tensors="pt"
        )
        out = clip(tokens.input_ids.to(clip.device), output_hidden_states=True)
        pooled = out.pooler_output if isinstance(clip, CLIPTextModel) else out.text_embeds
        return out.hidden_states[-2].to(clip.dtype), pooled.to(clip.dtype)

    def _t5(self, captions: list[str], text_length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if self.t5 is None or self.t5_tokenizer is None:
            return like.new_zeros(len(captions), text_length, self.width), torch.full((len(captions),), text_length)
        tokens = self.t5_tokenizer(
            captions, padding="max_length", max_length=text_length, truncation=True, return_tensors="pt"
        )
        return self.t5(tokens.input_ids.to(self.t5.device))[0], tokens.attention_mask.sum(dim=1)
