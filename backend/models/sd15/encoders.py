"""Encodes captions with the text encoder of Stable Diffusion 1.5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTokenizer

from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.clip_encoders import as_in_files
from backend.models.common.load_options import LoadOptions
from backend.models.unet.clip_text import joined, token_ids


@dataclass
class TextStack:
    """One CLIP."""

    clip: CLIPTextModel
    tokenizer: CLIPTokenizer

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """The encoder with its tokenizer. Refused when a part is missing or broken, named."""
        clip = model_parts.encoder(CLIPTextModel, base, loading, facts.part("text_encoder"))
        return cls(clip, model_parts.tokenizer(CLIPTokenizer, base, facts.part("tokenizer")))

    def trained(self) -> tuple[nn.Module, list[str]]:
        """The encoder in a module whose paths are the names in LoRA files, and patterns of what trains nothing."""
        return as_in_files(te=self.clip), []

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What `states` gives, without gradients."""
        return self.states(captions, text_length)

    def states(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """``prompt_embeds`` (T, D): the last states after the final norm, padding included, as diffusers' pipeline.

        text_length: 77 = T, or more by whole chunks.
        """
        ids = token_ids(self.tokenizer, captions, text_length).to(self.clip.device)
        return [{"prompt_embeds": row} for row in joined(self.clip(ids.flatten(0, 1))[0], len(captions))]
