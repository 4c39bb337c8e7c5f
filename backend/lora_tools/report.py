"""Describes a LoRA file: kind, family, names, ranks, alphas, the strength of each layer, and what is wrong with it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from backend.families.table import FAMILIES
from backend.lora.comfyui_keys import family_of_names
from backend.lora.file_contents import TITLES
from backend.lora_tools.base_models import OpenModel, feature_size, misfits
from backend.lora_tools.lora_layers import RawLayer, RawLora, norm_of
from backend.lora_tools.resize import Watch, no_watch


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerReport:
    """A layer. norm: of its change at strength 1. relative: to the norm of the base's weight, where that is given."""

    name: str
    kind: str
    rank: int | None
    alpha: float | None
    norm: float | None
    relative: float | None = None
    is_text: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A LoRA file. ranks, alphas and formats: value -> layers or tensors. problems: what is wrong, in sentences."""

    file: str
    bytes: int
    kinds: dict[str, int]
    family: str | None
    styles: list[str]
    keys: int
    ranks: dict[str, int]
    alphas: dict[str, int]
    formats: dict[str, int]
    layers: list[LayerReport]
    text_layers: int
    embeddings: list[str]
    others: dict[str, int]
    problems: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values; a number that JSON has no word for is None."""
        return json.loads(json.dumps(_finite(asdict(self))))

    def strongest(self, count: int) -> list[LayerReport]:
        """The layers with the largest norm, relative to the base where that is known."""
        known = [layer for layer in self.layers if layer.norm is not None and math.isfinite(layer.norm)]
        return sorted(known, key=lambda layer: -(layer.norm if layer.relative is None else layer.relative))[:count]


def report_of(file: RawLora, base: OpenModel | None = None, watch: Watch = no_watch) -> Report:
    """What the file holds; every tensor is read. base: the model whose weights the norms are compared with."""
    broken = sorted(key for key in file.shapes if not _is_finite(file, key))
    bad = set(broken)
    squares = {} if base is None else _base_squares(base, watch)
    layers = [_layer(file, layer, bad, base, squares) for layer in file.layers.values()]
    zero = [each.name for each in layers if each.norm == 0]
    problems = [f"{_some(broken)}: NaN or infinity." for _ in (1,) if broken]
    problems += [f"{_some(zero)}: the change is 0, so that the layer does nothing." for _ in (1,) if zero]
    lacking = [f"{each.stem} ({', '.join(each.lacking)})" for each in file.layers.values() if each.lacking]
    problems += [f"{_some(lacking)}: parts are missing, so that the layer does nothing." for _ in (1,) if lacking]
    misfits_inside = [text for each in file.layers.values() if (text := each.misfit(file.shapes))]
    problems += [f"{_some(misfits_inside)}: its factors do not fit each other." for _ in (1,) if misfits_inside]
    unknown = [key for key, kind in file.others.items() if not kind]
    problems += [f"{_some(unknown)}: keys that belong to no kind of LoRA." for _ in (1,) if unknown]
    if base is not None:
        sizes = {stem: feature_size(file.size(layer).items()) for stem, layer in file.layers.items()}
        foreign, other = misfits(sizes, base.names)
        problems += [f"{_some(foreign)}: {base.facts.title} has no such layer." for _ in (1,) if foreign]
        problems += [f"{_some(other)}: the layer has another size in the base model." for _ in (1,) if other]
    return Report(
        file=str(file.path),
        bytes=file.path.stat().st_size,
        kinds={TITLES[kind].removeprefix("a "): count for kind, count in file.kinds.most_common()},
        family=_family(file),
        styles=file.styles(),
        keys=len(file.shapes),
        ranks=_counted(layer.rank for layer in layers),
        alphas=_counted(layer.alpha for layer in layers),
        formats=_counted(file.formats.values()),
        layers=layers,
        text_layers=sum(layer.is_text for layer in layers),
        embeddings=list(file.embeddings),
        others=_counted(kind or "unknown" for kind in file.others.values()),
        problems=problems,
        metadata=dict(file.metadata),
    )


def _layer(
    file: RawLora, layer: RawLayer, bad: set[str], base: OpenModel | None, squares: Mapping[str, float]
) -> LayerReport:
    known = not layer.lacking and not layer.misfit(file.shapes) and bad.isdisjoint(layer.keys.values())
    norm = norm_of(file, layer) if known else None
    relative = None
    if norm is not None and base is not None:
        paths = [path for path, _ in base.names.stems.get(layer.stem, ())]
        whole = math.sqrt(sum(squares.get(path, 0.0) for path in paths))
        relative = norm / whole if whole else None
    return LayerReport(
        name=layer.stem,
        kind=layer.kind,
        rank=file.rank(layer),
        alpha=file.alpha(layer),
        norm=norm,
        relative=relative,
        is_text=layer.is_text,
    )


def _base_squares(base: OpenModel, watch: Watch) -> dict[str, float]:
    """Layer -> the sum of its weight's squares."""
    weights = base.weights()
    squares = {}
    for number, (path, weight) in enumerate(weights.items()):
        watch(number, len(weights), path)
        squares[path] = float(weight.read().float().square().sum(dtype=torch.float64))
    watch(len(weights), len(weights), "")
    return squares


def _is_finite(file: RawLora, key: str) -> bool:
    value = file.tensor(key)
    return not value.is_floating_point() or bool(torch.isfinite(value.float()).all())


def _family(file: RawLora) -> str | None:
    """By the metadata, or else by the layers' names; these too where families share a word, as all of Wan do."""
    version = file.metadata.get("ss_base_model_version")
    titles = [each.title for each in FAMILIES.values() if each.lora_version == version]
    return titles[0] if len(titles) == 1 else family_of_names(file.layers) or next(iter(titles), None)


def _counted(values: Any) -> dict[str, int]:
    counted = Counter(
        "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values
    )
    return dict(counted.most_common())


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
