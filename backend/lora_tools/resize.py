"""Changes the rank of a LoRA file: each layer's product is factored again, under the keys that the file has."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.base.tensor_names import clean_key
from backend.lora_tools.factors import Factors, RankChoice, factors_of_product
from backend.lora_tools.lora_layers import RawLayer, RawLora, plain_layers
from backend.lora_tools.output import HASHES
from backend.models.common.tensor_sources import DTYPES

Watch = Callable[[int, int, str], None]
"""Layers done, of so many, and the name of the next one."""


def no_watch(done: int, total: int, name: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizedLayer:
    """What became of a layer. kept: share of its norm that is left."""

    stem: str
    before: int
    after: int
    kept: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Resized:
    """A file's new tensors and metadata. kept: share of the norm of all changes together."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    layers: list[ResizedLayer]
    kept: float


def resized(file: RawLora, choice: RankChoice, device: torch.device, watch: Watch = no_watch) -> Resized:
    """The LoRA of `file` with smaller ranks, worked out on `device`. Refused for other kinds than LoRA and DoRA.

    A layer whose rank is small enough keeps its tensors as they are. Of a DoRA the product is factored and its lengths
    are kept. Numbers keep the file's formats; alpha is the new rank.
    """
    layers = plain_layers(file, "only a LoRA can be resized")
    untouched = {key for key in file.shapes if key not in {k for layer in layers for k in layer.keys.values()}}
    tensors = {key: file.tensor(key).clone() for key in untouched}
    results: list[ResizedLayer] = []
    total, left = 0.0, 0.0
    for number, layer in enumerate(layers):
        watch(number, len(layers), layer.stem)
        parts = file.parts(layer)
        factors = factors_of_product(parts["A"].flatten(1).to(device), parts["B"].flatten(1).to(device), choice)
        before, scale = parts["A"].shape[0], file.scale(layer)
        total += (factors.norm * scale) ** 2
        left += (factors.norm * scale * factors.kept) ** 2
        kept = factors.kept
        if factors.rank >= before:
            kept = 1.0
            baked = "alpha" not in layer.keys and scale != 1.0
            tensors |= {key: file.tensor(key).clone() for key in layer.keys.values()}
            if baked:
                tensors[layer.keys["B"]] = (parts["B"] * scale).to(tensors[layer.keys["B"]].dtype)
        else:
            tensors |= _renewed(file, layer, factors, scale, parts)
        results.append(ResizedLayer(stem=layer.stem, before=before, after=min(before, factors.rank), kept=kept))
    watch(len(layers), len(layers), "")
    share = (left / total) ** 0.5 if total else 1.0
    ordered = {clean_key(key): tensors[key] for key in file.shapes}
    return Resized(tensors=ordered, metadata=_metadata(file, results, share), layers=results, kept=share)


def _renewed(
    file: RawLora, layer: RawLayer, factors: Factors, scale: float, parts: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors of a layer with these factors, in the file's shapes and formats."""
    a, b = factors.a.cpu(), factors.b.cpu()
    a = a.reshape(-1, *parts["A"].shape[1:])
    b = b.reshape(*b.shape, *(1,) * (parts["B"].dim() - 2))
    renewed: dict[str, Tensor] = {}
    for part, key in layer.keys.items():
        dtype = DTYPES[file.formats[key]]
        if part == "A":
            renewed[key] = a.to(dtype)
        elif part == "B":
            # without a key for alpha, others take alpha = rank
            renewed[key] = (b if "alpha" in layer.keys else b * scale).to(dtype)
        elif part == "alpha":
            renewed[key] = torch.full(file.shapes[key], scale * factors.rank, dtype=dtype)
        else:
            renewed[key] = file.tensor(key).clone()
    return renewed


def _metadata(file: RawLora, layers: list[ResizedLayer], kept: float) -> dict[str, str]:
    # peft's table of ranks and alphas is of the old ones, and alpha is in B now where it came from there
    kept_keys = {key: value for key, value in file.metadata.items() if key not in (*HASHES, "lora_adapter_metadata")}
    rank = max((layer.after for layer in layers), default=0)
    facts = {
        "from": file.path.name,
        "rank_before": max((layer.before for layer in layers), default=0),
        "norm_kept": round(kept, 6),
    }
    if "ss_network_dim" in kept_keys:
        kept_keys["ss_network_dim"] = str(rank)
        kept_keys["ss_network_alpha"] = str(_common_alpha(file, layers, rank))
    return {**kept_keys, "monotile.resized": json.dumps(facts)}


def _common_alpha(file: RawLora, layers: list[ResizedLayer], rank: int) -> float:
    """Alpha of the layers at the highest rank."""
    stem = next((layer.stem for layer in layers if layer.after == rank), None)
    return float(rank) if stem is None else file.scale(file.layers[stem]) * rank
