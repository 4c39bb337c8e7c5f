"""Encodes captions with SDXL's two text encoders, and its micro-conditioning, as ``StableDiffusionXLPipeline`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.models.common import model_parts
from backend.models.common.clip_encoders import as_in_files
from backend.models.common.load_options import LoadOptions
from backend.models.unet.clip_text import joined, layers_of, token_ids


@dataclass
class TextStack:
    """CLIP-L and OpenCLIP bigG: their states side by side, and the pooled vector of the larger one."""

    first: CLIPTextModel
    first_tokenizer: CLIPTokenizer
    second: CLIPTextModelWithProjection
    second_tokenizer: CLIPTokenizer

    @classmethod
    def load(cls, facts: FamilyFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """Both encoders with their tokenizers. Refused when a part is missing or broken, named."""
        part = facts.part
        return cls(
            model_parts.encoder(CLIPTextModel, base, loading, part("text_encoder")),
            model_parts.tokenizer(CLIPTokenizer, base, part("tokenizer")),
            model_parts.encoder(CLIPTextModelWithProjection, base, loading, part("text_encoder_2")),
            model_parts.tokenizer(CLIPTokenizer, base, part("tokenizer_2")),
        )

    def trained(self) -> tuple[nn.Module, list[str]]:
        """Both encoders as one module, whose paths are the names in LoRA files, and patterns of what trains nothing.

        Nothing reads the last layer of the smaller one.
        """
        last = len(layers_of(self.first)) - 1
        return as_in_files(te1=self.first, te2=self.second), [rf"te1\.text_model\.encoder\.layers\.{last}\..+"]

    @torch.no_grad()
    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What `states` gives, without gradients."""
        return self.states(captions, text_length)

    def states(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """What the denoiser receives of each caption, on the encoders' device and in their dtype.

        ``prompt_embeds`` (T, D): the states before the last layer of both encoders, padding included. ``pooled`` (P,):
        the projected state of the larger one's end token. text_length: 77 = T, or more by whole chunks; the pooled
        vector is that of the first one.
        """
        count = len(captions)
        ids = token_ids(self.first_tokenizer, captions, text_length).to(self.first.device)
        one = self.first(ids.flatten(0, 1), output_hidden_states=True)
        ids = token_ids(self.second_tokenizer, captions, text_length).to(self.second.device)
        two = self.second(ids.flatten(0, 1), output_hidden_states=True)
        states = joined(torch.cat([one.hidden_states[-2], two.hidden_states[-2]], dim=-1), count)
        pooled = two.text_embeds.unflatten(0, (count, -1))[:, 0]
        return [{"prompt_embeds": states[i], "pooled": pooled[i]} for i in range(count)]


def conditions(original: tuple[int, int], crop: tuple[float, float], target: tuple[int, int]) -> dict[str, Tensor]:
    """``time_ids`` (6,) float32 of a picture (Podell et al., arXiv 2307.01952, section 2.2).

    original: width and height of the file. crop: left and top, in px of the picture scaled to its bucket. target: width
    and height of the bucket. The model receives each pair with the vertical number first.
    """
    pairs = (original, (round(crop[0]), round(crop[1])), target)
    return {"time_ids": torch.tensor([side for across, down in pairs for side in (down, across)], dtype=torch.float32)}
