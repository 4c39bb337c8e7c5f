"""Reading LoRA files of any common layout, and going on from one."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from backend.compile.state_dict import clean_key
from backend.lora.inject import Lora
from backend.lora.keys import Names, family_of_names, is_of_text, kind_of_key, split_key
from backend.lora.native import Native
from backend.models.files import kind_of
from backend.refused import Refused

log = logging.getLogger(__name__)

_SETTING = "network.network_weights"
_KINDS = {
    "loha": "a LoHa",
    "lokr": "a LoKr",
    "dora": "a DoRA",
    "locon": "a LoRA of convolutions in three parts",
    "diff": "differences of whole weights",
    "oft": "an OFT",
    "bias": "a LoRA with biases",
}


@dataclass(frozen=True)
class Found:
    """A layer's halves in the file. keys: ``A``, ``B``, perhaps ``alpha`` -> key there. rank: of A there."""

    keys: Mapping[str, str]
    native: Native | None
    rank: int


@dataclass(frozen=True)
class Contents:
    """What a LoRA file holds, from its header. left_out: what of it can't be trained here, in words."""

    layers: dict[str, Found]
    left_out: list[str]
    metadata: dict[str, str]


@dataclass(frozen=True)
class LoraFile:
    """A LoRA as it lies in a file. pairs: module path -> A (r, in), B (out, r); scales: path -> alpha / r."""

    pairs: dict[str, tuple[Tensor, Tensor]]
    scales: dict[str, float]
    metadata: dict[str, str]
    left_out: list[str] = field(default_factory=list)


def inspect_lora(path: Path, names: Names) -> Contents:
    """Which layers the file at `path` changes, from its header alone.

    Refused, with the reason, for what is no LoRA or one of another model: nothing heavy has to be loaded to say so.
    """
    shapes, metadata = _header(path)
    halves: dict[str, dict[str, str]] = {}
    other: dict[str, list[str]] = {}
    for key in shapes:
        parsed = split_key(clean_key(key))
        if parsed is None:
            other.setdefault(kind_of_key(clean_key(key)) or "", []).append(key)
        elif parsed[1] in halves.setdefault(parsed[0], {}):
            raise Refused(f"{path.name} holds the LoRA of {parsed[0]} twice", "Give another file.", _SETTING)
        else:
            halves[parsed[0]][parsed[1]] = key
    # beside another kind's tensors alpha stands alone
    halves = {stem: keys for stem, keys in halves.items() if keys.keys() != {"alpha"} or not other}
    _refuse_others(path, other, shapes)
    text = [stem for stem in halves if is_of_text(stem) and stem not in names.stems]
    unknown, convolutions = [], []
    layers: dict[str, Found] = {}
    for stem, keys in halves.items():
        parts = names.stems.get(stem)
        if stem in text:
            continue
        if not {"A", "B"} <= keys.keys():
            raise Refused(f"{path.name} is broken: {stem} lacks a half", "Copy the file again.", _SETTING)
        if parts is None and len(shapes[keys["A"]]) == 4:
            convolutions.append(stem)
        elif parts is None:
            unknown.append(stem)
        else:
            for layer, native in parts:
                _check_size(path, layer, native, names, shapes[keys["A"]], shapes[keys["B"]])
                layers[layer] = Found(keys, native, shapes[keys["A"]][0])
    _refuse_foreign(path, unknown, halves, layers)
    left_out = []
    if text:
        left_out.append(f"the LoRA of text encoders ({len(text)} layers), which are not trained here")
    if convolutions:
        left_out.append(f"{len(convolutions)} convolutions ({convolutions[0]} first): a LoRA goes into linear layers")
    return Contents(layers, left_out, metadata)


def check_continue(path: Path, names: Names, ranks: Mapping[str, int]) -> Contents:
    """`inspect_lora`, and Refused when a LoRA with these target layers -> ranks can't hold what the file holds."""
    contents = inspect_lora(path, names)
    _refuse_lost(contents.layers, ranks)
    return contents


def read_lora(path: Path, names: Names) -> LoraFile:
    """The LoRA at `path`, on the CPU in float32. Refused as in `inspect_lora`.

    Where the file has a fused layer (query, key and value in one), each layer gets its own rows of B and the same A,
    which is exact. Without alpha, in the file or in what peft and diffusers write beside it, alpha is the rank.
    """
    contents = inspect_lora(path, names)
    configured = _Configured.of(path, contents.metadata)
    pairs, scales = {}, {}
    with safetensors.safe_open(path, framework="pt", device="cpu") as file:
        for layer, found in contents.layers.items():
            a, b = (file.get_tensor(found.keys[half]).float() for half in ("A", "B"))
            a, b = a.flatten(1), b.flatten(1)
            if found.native is not None:
                b = _part(b, found.native, names.layers[layer][1])
            pairs[layer] = a, b.contiguous()
            alpha = found.keys.get("alpha")
            scales[layer] = float(file.get_tensor(alpha)) / found.rank if alpha else configured.scale(layer, found.rank)
    return LoraFile(pairs, scales, contents.metadata, contents.left_out)


def continue_from(lora: Lora, file: LoraFile) -> list[str]:
    """Set `lora` to the LoRA of `file`, at the same strength whatever its rank and alpha; return what to say about it.

    A smaller rank is padded: the added rows of A keep their random start and the added columns of B are 0, so that the
    function is the same. Refused for a larger rank, other shapes, and layers that are no targets: they would be lost.
    """
    ranks = {path: lora.rank_of(path) for path in lora.layers}
    flat = {path: (a.flatten(1), b.flatten(1)) for path, (a, b) in file.pairs.items()}
    pairs = {path: _narrowed(a, b, ranks.get(path, a.shape[0])) for path, (a, b) in flat.items()}
    _refuse_lost({path: a.shape[0] for path, (a, _) in pairs.items()}, ranks)
    padded = set()
    with torch.no_grad():
        for path, (a, b) in pairs.items():
            live_a, live_b = lora.pair(path)
            rank = a.shape[0]
            if a[0].numel() != live_a[0].numel() or b.shape[0] != live_b.shape[0] or b.shape[1] != rank:
                size = f"{tuple(b.shape)} x {tuple(a.shape)}"
                text = f"{path} is {size} in the LoRA to continue from, another size than here"
                raise Refused(text, "Use a LoRA of the same base model.", _SETTING)
            # a convolution's have two dimensions more
            live_a[:rank].copy_(a.reshape(live_a[:rank].shape))
            live_b.zero_()
            live_b[:, :rank].copy_((b * (file.scales[path] / lora.scale_of(path))).reshape(live_b[:, :rank].shape))
            if rank < ranks[path]:
                padded.add((rank, ranks[path]))
    lora.publish()
    said = [f"From the LoRA to continue from is left out: {what}." for what in file.left_out]
    for old, new in sorted(padded):
        said.append(
            f"The LoRA to continue from has rank {old}; it was padded to {new} and draws the same until trained."
        )
    fresh = [path for path in lora.layers if path not in file.pairs]
    if fresh:
        said.append(
            f"{len(fresh)} target layers are not in the LoRA to continue from and start fresh ({fresh[0]} first)."
        )
    for sentence in said:
        log.warning(sentence)
    return said


@dataclass(frozen=True)
class _Configured:
    """Rank and alpha as peft (``adapter_config.json``) and diffusers (``lora_adapter_metadata``) keep them."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, metadata: Mapping[str, str]) -> _Configured:
        """What lies in the file's metadata, or in a config beside a file that carries peft's name."""
        try:
            if "lora_adapter_metadata" in metadata:
                said = json.loads(metadata["lora_adapter_metadata"])
                return cls({key.partition(".")[2] or key: value for key, value in said.items()})
            beside = path.with_name("adapter_config.json")
            if path.name.startswith("adapter_model") and beside.is_file():
                return cls(json.loads(beside.read_text(encoding="utf-8")))
        except (OSError, ValueError, AttributeError) as error:
            text = f"What {path.name} says about rank and alpha can't be read: {error}"
            raise Refused(text, "Give a file that is whole.", _SETTING) from error
        return cls({})

    def scale(self, layer: str, rank: int) -> float:
        """What B A of a layer is multiplied by; 1 where nothing is said."""
        alpha = self.values.get("lora_alpha")
        for pattern, value in (self.values.get("alpha_pattern") or {}).items():
            if layer == pattern or layer.endswith(f".{pattern}") or re.fullmatch(rf"(.*\.)?({pattern})", layer):
                alpha = value
        if alpha is None:
            return 1.0
        return float(alpha) / (math.sqrt(rank) if self.values.get("use_rslora") else rank)


def _header(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Key -> shape, and metadata."""
    if path.is_dir():
        text = f"{path} is a folder"
        raise Refused(text, "Give the LoRA file in it, a .safetensors file.", _SETTING)
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            return shapes, dict(file.metadata() or {})
    except (OSError, safetensors.SafetensorError) as error:
        remedy = "Give a LoRA as a .safetensors file that is whole."
        raise Refused(f"{path} can't be read: {error}", remedy, _SETTING) from error


def _refuse_others(path: Path, other: Mapping[str, list[str]], keys: Iterable[str]) -> None:
    """Refused for tensors that belong to no plain LoRA."""
    for kind, found in other.items():
        if kind:
            text = f"{path.name} holds {_KINDS[kind]} ({found[0]}), not only a LoRA"
            raise Refused(text, "Give a plain LoRA file.", _SETTING)
    if other:
        what = kind_of(keys)
        named = f"{path.name} is {what}, not a LoRA" if what and what != "a LoRA" else f"{path.name} is not a LoRA"
        raise Refused(f"{named} (it holds {other[''][0]})", "Give a LoRA file.", _SETTING)


def _refuse_foreign(path: Path, unknown: list[str], stems: Iterable[str], layers: Mapping[str, Found]) -> None:
    if not unknown and layers:
        return
    if unknown:
        family = family_of_names(unknown)
        what = f"is a LoRA of {family}" if family and not layers else "is a LoRA of another model"
        text = f"{path.name} {what}: this one has no layer {unknown[0]}"
    elif stems:
        text = f"{path.name} changes text encoders or convolutions only, and nothing that is trained here"
    else:
        text = f"{path.name} is empty: it holds no LoRA"
    raise Refused(text, "Use a LoRA of the same base model.", _SETTING)


def _refuse_lost(layers: Mapping[str, Found | int], ranks: Mapping[str, int]) -> None:
    lost = [path for path in layers if path not in ranks]
    if lost:
        text = (
            f"The LoRA to continue from also changes {len(lost)} layers that are no targets now ({', '.join(lost[:3])})"
        )
        raise Refused(text, "Add them to targets_include, or start from another LoRA.", _SETTING)
    for path, held in layers.items():
        # rows of a fused layer may need less than the whole rank; its values tell
        if isinstance(held, int) or held.native is None or len(held.native.shares) == 1:
            rank = held if isinstance(held, int) else held.rank
            if rank > ranks[path]:
                text = f"The LoRA to continue from has rank {rank} at {path}, larger than {ranks[path]} here"
                raise Refused(text, f"Set network_dim to {rank} or more.", _SETTING)


def _check_size(
    path: Path, layer: str, native: Native | None, names: Names, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    inner, outer = names.layers[layer]
    outer = native.rows(outer)[2] if native else outer
    if math.prod(a[1:]) != inner or b[0] != outer or math.prod(b[1:]) != a[0]:
        text = f"{layer} is {list(b)} x {list(a)} in {path.name}, but {outer} x {inner} in this model"
        raise Refused(text, "Use a LoRA of the same base model.", _SETTING)


def _part(b: Tensor, native: Native, out_features: int) -> Tensor:
    """The rows (out, r) of a fused layer's B that belong to one layer."""
    start, end, _ = native.rows(out_features)
    part = b[start:end]
    return torch.cat(part.chunk(2)[::-1]) if native.turn == "swap_halves" else part


def _narrowed(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A and B without ranks whose column of B is 0, if more than `rank` are there: B A stays the same.

    Files that keep the LoRAs of query, key and value in one layer stack them, with zeros for each other's.
    """
    if a.shape[0] <= rank:
        return a, b
    used = b.abs().amax(dim=0) > 0
    if int(used.sum()) < min(rank, a.shape[0]):
        used[(~used).nonzero().flatten()[: rank - int(used.sum())]] = True
    return a[used], b[:, used]
