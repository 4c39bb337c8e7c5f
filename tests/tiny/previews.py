"""LoRA files for tiny base models, and requests to draw with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from backend.config.layer_patterns import Kind
from backend.config.load import parse
from backend.config.schema import Config, SamplePrompt
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.lora.comfyui_keys import Format, linear_layers, names_of
from backend.lora.inject import find_targets, inject
from backend.lora.save import file_tensors
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family

PROMPT = SamplePrompt(prompt="a red circle", width=64, height=64, steps=3, seed=5)


def settings(base: Path, name: str = "flux", **changes: dict[str, Any]) -> Config:
    """Settings of an eager preview, with `changes` by section."""
    data: dict[str, Any] = {"model": {"base_model": str(base), "family": name}, "compile": {"compile": False}}
    if name == "flux":
        data["model"]["text_length"] = 16
    for section, values in changes.items():
        data[section] = {**data.get(section, {}), **values}
    loaded = parse(data)
    assert loaded.config is not None, [problem.sentence() for problem in loaded.problems]
    return loaded.config


def write_lora(
    path: Path,
    base: Path,
    name: str = "flux",
    *,
    rank: int = 4,
    alpha: float = 4,
    targets: Sequence[str] | None = None,
    kind: Kind = "lora",
    form: Format = "kohya",
    seed: int = 1,
    text: bool = False,
) -> Path:
    """A LoRA file of random numbers, none of them 0, as a run writes it. text: with the text encoders that train."""
    model, facts = load_family(name).empty_denoiser(base).to_empty(device="cpu"), family(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(seed))
    names = names_of(linear_layers(model), facts)
    layers = find_targets(model, targets or facts.default_targets)
    lora = inject(model, layers, rank=rank, alpha=alpha, dropout=0.0, seed=seed, kind=kind)
    if text:
        files = BaseModelFiles.at(base)
        module, idle = load_family(name).load_text(files, LoadOptions(torch.float32, torch.device("cpu"))).trained()
        paths = find_targets(module, facts.text_targets, idle)
        sizes = linear_layers(module)
        names = names.joined({layer: sizes[layer] for layer in paths})
        lora = lora.joined(inject(module, paths, rank=rank, alpha=alpha, dropout=0.0, seed=seed))
    fill(lora.parameters(), seed)
    safetensors.torch.save_file(file_tensors(lora, "fp32", names, form), path)
    return path


def fill(parts: Sequence[nn.Parameter], seed: int) -> None:
    """Random numbers in all of these."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in parts:
            part.normal_(std=0.2, generator=source)
