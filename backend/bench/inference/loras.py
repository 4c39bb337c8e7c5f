"""Writes LoRA files of random numbers that differ in all that a file may differ in: rank, alpha, layers, layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.lora.comfyui_keys import Format, linear_layers, names_of
from backend.lora.inject import find_targets
from backend.lora.save import LayerWeights, in_format
from backend.models.family_classes import load_family


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraKind:
    """What one file is like. part: the first of so many equal parts of the family's usual layers is changed."""

    rank: int
    alpha: float
    part: int = 1
    form: Format = "kohya"


KINDS: Mapping[str, LoraKind] = {
    "usual": LoraKind(rank=16, alpha=16),
    "wide": LoraKind(rank=32, alpha=8, part=2),
    "narrow": LoraKind(rank=4, alpha=4, part=3, form="diffusers"),
}
"""By name of the file."""


def write_loras(base: Path, family_name: str, folder: Path) -> list[Path]:
    """Write a file of each kind for the model at `base`; their paths, in the order of KINDS."""
    facts = family(family_name)
    model = load_family(family_name).empty_denoiser(BaseModelFiles.at(base))
    sizes = linear_layers(model)
    names, targets = names_of(sizes, facts), find_targets(model, facts.default_targets)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (name, kind) in enumerate(KINDS.items()):
        source = torch.Generator().manual_seed(number)
        layers = {}
        for path in targets[: max(1, len(targets) // kind.part)]:
            wide, high = sizes[path]
            # small enough for a picture, and none of them 0
            a = torch.randn(kind.rank, wide, generator=source) * wide**-0.5
            b = torch.randn(high, kind.rank, generator=source) * 0.02
            layers[path] = LayerWeights(a, b, kind.alpha / kind.rank)
        tensors = {
            key: value.contiguous() if value.ndim == 0 else value.bfloat16().contiguous()
            for key, value in in_format(layers, names, kind.form).items()
        }
        paths.append(folder / f"{name}.safetensors")
        save_file(tensors, paths[-1])
    return paths
