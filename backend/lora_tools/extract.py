"""Extracts a LoRA from a fine-tuned model: what it changed of its base model, layer by layer, as two small factors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.config.layer_patterns import fits
from backend.families.files.hashes import ModelHashes
from backend.lora.comfyui_keys import Format, not_loadable
from backend.lora.save import LayerWeights
from backend.lora_tools.base_models import OpenModel, Stored
from backend.lora_tools.factors import RankChoice, factors_of
from backend.lora_tools.resize import Watch, no_watch
from backend.models.common.tensor_sources import LazyTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractedLayer:
    """What became of a layer. norm: of its change. kept: share of it. relative: of the change, to the weight's norm."""

    path: str
    rank: int
    norm: float
    kept: float
    relative: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Extracted:
    """The LoRA. equal: layers that are the same in both. left_out: changed tensors that are not in it -> why."""

    layers: dict[str, LayerWeights]
    facts: list[ExtractedLayer]
    equal: int
    left_out: dict[str, str]

    @property
    def kept(self) -> float:
        """Share of the norm of all changes together that is kept."""
        whole = sum(each.norm**2 for each in self.facts)
        return math.sqrt(sum((each.norm * each.kept) ** 2 for each in self.facts) / whole) if whole else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A tensor in both models. layer: "" where no LoRA can hold its change."""

    name: str
    layer: str
    base: LazyTensor
    tuned: LazyTensor


def pairs_of(base: OpenModel, tuned: OpenModel) -> list[Pair]:
    """The tensors of both models. Refused, with the first difference, where they are not of one build."""
    if base.facts.denoiser_class != tuned.facts.denoiser_class:
        text = f"{base.files.path} is {base.facts.title}, and {tuned.files.path} is {tuned.facts.title}"
        raise Refused(text, "Give a model and what was trained from it.")
    texts = {part.name for part in base.parts()} & {part.name for part in tuned.parts()}
    pairs: list[Pair] = []
    for part in base.parts():
        if part.name not in texts:
            continue
        ours, theirs = base.stored(part), tuned.stored(part)
        lacking = [name for name in ours if name not in theirs] + [name for name in theirs if name not in ours]
        if lacking:
            where, other = (tuned, base) if lacking[0] in ours else (base, tuned)
            text = f"{where.files.path} has no {lacking[0]}, which {other.files.path} has"
            raise Refused(text, "Give a model and what was trained from it.")
        pairs += [_pair(name, one, theirs[name]) for name, one in ours.items()]
    return pairs


def extracted(
    pairs: Sequence[Pair],
    base: OpenModel,
    choice: RankChoice,
    device: torch.device,
    targets: Sequence[str] = (),
    watch: Watch = no_watch,
) -> Extracted:
    """The LoRA of what differs, worked out on `device`, one layer at a time.

    targets: patterns as in ``targets_include``; every layer whose LoRA other programs load where there are none.
    Refused for numbers that are not finite, and for a pattern that names no layer.
    """
    for pattern in targets:
        _refuse_nothing(pattern, base)
    beyond = set() if targets else set(not_loadable(base.names.layers, base.facts.lora_layers))
    layers: dict[str, LayerWeights] = {}
    facts: list[ExtractedLayer] = []
    left_out: dict[str, str] = {}
    equal = 0
    for number, pair in enumerate(pairs):
        watch(number, len(pairs), pair.name)
        weight = pair.base.read().to(device, torch.float32)
        change = pair.tuned.read().to(device, torch.float32) - weight
        if not torch.isfinite(change).all():
            raise Refused(f"{pair.name} holds NaN or infinity in one of the models", "Use models that are whole.")
        if not change.any():
            equal += bool(pair.layer)
        elif not pair.layer:
            left_out[pair.name] = "no LoRA holds it (a norm, a bias or an embedding)"
        elif targets and not any(fits(pattern, pair.layer) for pattern in targets):
            left_out[pair.layer] = "it is no target"
        elif pair.layer in beyond:
            left_out[pair.layer] = "other programs load no LoRA of it"
        else:
            layers[pair.layer], fact = _layer(pair.layer, weight, change, choice)
            facts.append(fact)
    watch(len(pairs), len(pairs), "")
    return Extracted(layers=layers, facts=facts, equal=equal, left_out=left_out)


def metadata_of(result: Extracted, base: OpenModel, tuned: OpenModel, hashes: Mapping[str, str]) -> dict[str, str]:
    """What the file says of itself. hashes: of the base model's files, by name."""
    rank = max((each.rank for each in result.facts), default=0)
    facts = {
        "base": Path(base.files.path or "").name,
        "tuned": Path(tuned.files.path or "").name,
        "norm_kept": round(result.kept, 6),
        "layers": len(result.facts),
        "base_sha256": dict(hashes),
    }
    single = {} if base.files.path is None or base.files.path.is_dir() else hashes
    return {
        "ss_network_module": "monotile.lora",
        "ss_network_dim": str(rank),
        "ss_network_alpha": str(float(rank)),
        "ss_base_model_version": base.facts.lora_version,
        "ss_sd_model_name": Path(base.files.path or "").name,
        **({"ss_new_sd_model_hash": next(iter(single.values()))} if single else {}),
        "ss_v2": "False",
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": base.facts.lora_architecture(base.files),
        "modelspec.implementation": "diffusers",
        "monotile.extracted": json.dumps(facts),
    }


class FileHashes:
    """SHA-256 of the denoiser's files, computed in threads while the layers are worked on."""

    def __init__(self, model: OpenModel) -> None:
        self._work = {path.name: ModelHashes(path) for path in model.weight_files()}

    def values(self, wait_s: float) -> dict[str, str]:
        """File name -> SHA-256, of those that are known after so many seconds each."""
        hashes = {name: work.metadata(wait_s).get("ss_new_sd_model_hash") for name, work in self._work.items()}
        return {name: value for name, value in hashes.items() if value is not None}

    def stop(self) -> None:
        """End the computation."""
        for work in self._work.values():
            work.stop()


def formatted(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of a LoRA file in `dtype`, alphas in float32. Refused for numbers too large for it."""
    result = {}
    for key, value in tensors.items():
        cast = value.float() if key.endswith(".alpha") else value.to(dtype)
        if not torch.isfinite(cast).all():
            raise Refused(f"{key} has values too large for the precision of the file", "Add --precision fp32 or bf16.")
        result[key] = cast.contiguous()
    return result


def lora_size(layers: Iterator[tuple[int, int]], rank: int, width: int) -> int:
    """Bytes of a LoRA of `rank` of layers with these (in, out) features, `width` bytes a number."""
    return sum((inner + outer) * min(rank, inner, outer) * width for inner, outer in layers)


def check_format(form: str) -> Format:
    """The layout of a file by the names that people have for it."""
    return "diffusers" if form == "diffusers" else "kohya"


def _refuse_nothing(pattern: str, base: OpenModel) -> None:
    try:
        if any(fits(pattern, layer) for layer in base.names.layers):
            return
        text = f"--targets: {pattern!r} names no layer of the model, such as {next(iter(base.names.layers))}"
    except re.error as error:
        text = f"--targets: {pattern!r} is no regular expression ({error})"
    raise Refused(text, "Write the end of a layer's name, or a regular expression for all of it.")


def _pair(name: str, base: Stored, tuned: Stored) -> Pair:
    if tuple(base.tensor.shape) != tuple(tuned.tensor.shape):
        text = f"{name} is {list(base.tensor.shape)} in the base model and {list(tuned.tensor.shape)} in the tuned one"
        raise Refused(text, "Give a model and what was trained from it.")
    return Pair(name=name, layer=base.layer, base=base.tensor, tuned=tuned.tensor)


def _layer(path: str, weight: Tensor, change: Tensor, choice: RankChoice) -> tuple[LayerWeights, ExtractedLayer]:
    factors = factors_of(change.flatten(1), choice)
    kernel = change.shape[2:]
    a = factors.a.cpu().reshape(factors.rank, *change.shape[1:])
    b = factors.b.cpu().reshape(change.shape[0], factors.rank, *(1 for _ in kernel))
    norm = float(weight.double().norm())
    fact = ExtractedLayer(
        path=path,
        rank=factors.rank,
        norm=factors.norm,
        kept=factors.kept,
        relative=factors.norm / norm if norm else math.inf,
    )
    return LayerWeights(a, b, 1.0), fact
