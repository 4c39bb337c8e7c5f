"""Finds the CLIP text encoders of a text stack, and has the names that LoRA files use for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from backend.families.clip_words import clip_words
from backend.families.spec import FamilyFacts


def as_in_files(**encoders: nn.Module) -> nn.Module:
    """`encoders` as one module: ``te1.text_model.encoder.layers.0.self_attn.q_proj`` and so on.

    sd-scripts writes these paths with ``lora_`` in front and points as underscores; ``te`` is the only one of a model,
    ``te1`` and ``te2`` are the two of SDXL. Some classes and versions of transformers have no ``text_model``.
    """
    named = {
        name: encoder if hasattr(encoder, "text_model") else nn.ModuleDict({"text_model": encoder})
        for name, encoder in encoders.items()
    }
    return nn.ModuleDict(named)


def clips_of(stack: Any, facts: FamilyFacts) -> nn.Module:
    """The CLIP encoders of a family's loaded text stack as one module, as `as_in_files`; empty where it has none."""
    clips = [each for each in parts_of(stack) if isinstance(each, CLIPTextModel | CLIPTextModelWithProjection)]
    return as_in_files(**dict(zip(clip_words(facts).values(), clips, strict=True)))


def clips_by_part(stack: Any, facts: FamilyFacts) -> dict[str, nn.Module]:
    """The CLIP encoders of a family's loaded text stack by the names of their parts."""
    clips = [each for each in parts_of(stack) if isinstance(each, CLIPTextModel | CLIPTextModelWithProjection)]
    return dict(zip(clip_words(facts), clips, strict=True))


def parts_of(stack: Any) -> Iterator[nn.Module]:
    """The models of a text stack, in the order in which it has them."""
    for value in vars(stack).values():
        yield from (each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, nn.Module))
