"""Names the layers of all text encoders that a LoRA may change: of CLIP, T5, and language models such as Qwen's."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, T5EncoderModel

from backend.families.clip_words import clip_words
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.models.common.base_weights import clip_layers
from backend.models.common.clip_encoders import clips_of, parts_of

T5_WORD, LANGUAGE_WORD = "te3", "te"
"""What files call T5, as sd-scripts does in every family, and the only encoder of a family."""

_T5_LAYER = re.compile(r"(encoder\.block\.\d+\.layer\.\d+\.(?:SelfAttention\.[qkvo]|DenseReluDense\.\w+))\.weight")
_LANGUAGE_LAYER = re.compile(r"(?:model\.|language_model\.)*(layers\.\d+\.(?:self_attn|mlp)\.\w+_proj)\.weight")


def text_words(facts: FamilyFacts) -> frozenset[str]:
    """The first words of the paths of text encoders' layers in a family."""
    return frozenset({*clip_words(facts).values(), *(word for word, _ in _others(facts).values())})


def text_layers(base: BaseModelFiles, facts: FamilyFacts) -> dict[str, tuple[int, int]]:
    """Layers of a model's text encoders that a LoRA may change -> (in, out) features, from headers alone.

    Of a language model those of its blocks, ``te.layers.0.self_attn.q_proj``, wherever its class has them; its eyes are
    left out.
    """
    layers = clip_layers(base, facts)
    for part, (word, pattern) in _others(facts).items():
        for name, (_, shape) in base.tensors(facts.part(part)).items():
            if (match := pattern.fullmatch(name)) and len(shape) == 2:
                layers[f"{word}.{match[1]}"] = shape[1], shape[0]
    return layers


def encoders_of(stack: Any, facts: FamilyFacts) -> nn.Module:
    """The encoders of a loaded text stack as one module, by the paths of `text_layers`."""
    named = dict(clips_of(stack, facts).named_children())
    for model in parts_of(stack):
        if isinstance(model, T5EncoderModel):
            named[T5_WORD] = model
        elif not isinstance(model, CLIPTextModel | CLIPTextModelWithProjection):
            blocks = _blocks(model)
            named |= {} if blocks is None else {LANGUAGE_WORD: nn.ModuleDict({"layers": blocks})}
    return nn.ModuleDict(named)


def _others(facts: FamilyFacts) -> dict[str, tuple[str, re.Pattern[str]]]:
    """Text encoders other than CLIP -> their word, and the names of their layers."""
    parts = [part for part in facts.parts if part.name.startswith("text_encoder")]
    others = [part for part in parts if not part.class_names[0].startswith("CLIPText")]
    return {
        part.name: (T5_WORD, _T5_LAYER) if part.class_names[0] == "T5EncoderModel" else (LANGUAGE_WORD, _LANGUAGE_LAYER)
        for part in others
    }


def _blocks(model: nn.Module) -> nn.Module | None:
    """The list of a language model's blocks; None where it has none."""
    named = model.named_modules()
    return next((each for name, each in named if name.endswith("layers") and "visual" not in name), None)
