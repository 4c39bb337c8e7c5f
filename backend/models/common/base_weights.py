"""Merges LoRA files into the base model while it loads, before it is quantised (sd-scripts' ``base_weights``).

One after the other, in the order given: ``W + t s B A`` of a LoRA with multiplier t, likewise the product of a LoKr or
LoHa; of a DoRA ``W + t (W' - W)``, as ComfyUI has it, W' being `backend.lora.dora`'s. Sums are made in float32.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.base.problems import Problem
from backend.config.sections.network import NetworkSection
from backend.families.clip_words import clip_words
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.lora.comfyui_keys import LayerNames
from backend.lora.file_contents import TITLES, inspect_lora
from backend.lora.load import LoraFile, read_lora
from backend.lora.lokr_loha_files import own_rows
from backend.lora.row_lengths import lengths_of
from backend.models.common.tensor_sources import LazyTensor

log = logging.getLogger(__name__)

SETTING = "network.base_weights"

_CLIP_LAYER = re.compile(r"(?:text_model\.)?(encoder\.layers\.\d+\.(?:self_attn\.\w+_proj|mlp\.fc[12]))\.weight")


@dataclass(frozen=True)
class BaseWeights:
    """What is merged. names: of all layers that a file may change. encoders: text encoder (part) -> its word there."""

    files: Sequence[tuple[Path, float]]
    names: LayerNames
    encoders: Mapping[str, str]

    @classmethod
    def of(
        cls, network: NetworkSection, base: BaseModelFiles, facts: FamilyFacts, names: LayerNames
    ) -> BaseWeights | None:
        """Those of the settings, of a denoiser with `names`; None where nothing is merged."""
        if not network.base_weights:
            return None
        merged = [(resolve(path), times) for path, times in network.merged]
        return cls(merged, names.joined(clip_layers(base, facts)), clip_words(facts))

    def check(self) -> list[Problem]:
        """Refused, before anything loads, for a file that is none or of another model; warnings of what is left out."""
        warnings = []
        for path, multiplier in self.files:
            try:
                content = inspect_lora(path, self.names)
            except Refused as error:
                raise Refused(error.text, error.remedy, SETTING) from error
            log.info("Merged into the base: %s, %s, times %g", path.name, TITLES[content.kind], multiplier)
            warnings += [
                Problem(SETTING, None, f"Of {path.name} is not merged: {what}", "", "warning")
                for what in content.left_out
            ]
        return warnings

    def of_text(self) -> list[Path]:
        """Those of the files that change a text encoder."""
        words = set(self.encoders.values())
        layers = {path: inspect_lora(path, self.names).layers for path, _ in self.files}
        return [
            path for path, changed_here in layers.items() if any(n.partition(".")[0] in words for n in changed_here)
        ]

    def merged(self, part: str, tensors: Mapping[str, LazyTensor], device: torch.device) -> dict[str, LazyTensor]:
        """`tensors` of a part of the model, by its own names, with what the files change, worked out on `device`."""
        files = [(read_lora(path, self.names), multiplier) for path, multiplier in self.files]
        result = {}
        for name, lazy in tensors.items():
            layer = self.layer_of(part, name)
            changes = tuple((file, times) for file, times in files if layer in file.scales)
            result[name] = _Merged(lazy, layer, changes, device) if changes else lazy
        return result

    def layer_of(self, part: str, name: str) -> str:
        """What the layer of a tensor is called in `names`; "" for what no file changes."""
        if part not in self.encoders:
            return name.removesuffix(".weight") if name.endswith(".weight") else ""
        clip = _CLIP_LAYER.fullmatch(name)
        return f"{self.encoders[part]}.text_model.{clip[1]}" if clip else ""


@dataclass(frozen=True)
class _Merged:
    """A weight of the base with what the files change in it; read as float32, on `device`."""

    base: LazyTensor
    layer: str
    changes: tuple[tuple[LoraFile, float], ...]
    device: torch.device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @torch.no_grad()
    def read(self) -> Tensor:
        weight = self.base.read().to(self.device, torch.float32).flatten(1)
        for file, times in self.changes:
            weight = changed(weight, file, self.layer, times)
        return weight.reshape(self.shape)


def clip_layers(base: BaseModelFiles, facts: FamilyFacts) -> dict[str, tuple[int, int]]:
    """Layers of a model's CLIP encoders that a LoRA may change, as in `LayerNames`, from headers alone."""
    layers = {}
    for part, word in clip_words(facts).items():
        for name, (_, shape) in base.tensors(facts.part(part)).items():
            if match := _CLIP_LAYER.fullmatch(name):
                layers[f"{word}.text_model.{match[1]}"] = shape[1], shape[0]
    return layers


def changed(weight: Tensor, file: LoraFile, layer: str, times: float) -> Tensor:
    """The weight (out, in features), float32, of `layer` with `times` what a file changes in it."""
    added = file.scales[layer] * difference(file, layer, weight)
    if layer in file.lengths:
        whole = weight + added
        lengths = lengths_of(whole.square().sum(1, keepdim=True))
        added = file.lengths[layer].to(weight) * whole / lengths - weight
    return weight + times * added


def difference(file: LoraFile, layer: str, like: Tensor) -> Tensor:
    """The change of `layer` before alpha / rank, (out, in features), on the device and in the format of `like`."""
    if layer in file.pairs:
        a, b = (half.flatten(1).to(like) for half in file.pairs[layer])
        return b @ a
    parts = {name: part.to(like) for name, part in file.factors[layer].items()}
    if "hada_w1_a" in parts:
        return (parts["hada_w1_a"] @ parts["hada_w1_b"]) * (parts["hada_w2_a"] @ parts["hada_w2_b"])
    large = parts["lokr_w2"] if "lokr_w2" in parts else parts["lokr_w2_a"] @ parts["lokr_w2_b"]
    whole = torch.kron(parts["lokr_w1"], large)
    native = file.joined.get(layer)
    return whole if native is None else own_rows(whole, native, like.shape[0])
