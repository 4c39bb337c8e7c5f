"""Reads LoRA files of any common layout, and continues training from one."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.config.layer_patterns import FACTORED, MAGNITUDE, Kind, Size
from backend.lora.comfyui_keys import LayerNames
from backend.lora.file_contents import SETTING, TITLES, Contents, FileLayer, inspect_lora
from backend.lora.lokr_loha_files import check_factors, own_factors, own_rows, set_factors
from backend.lora.native_names import Native

if TYPE_CHECKING:
    from backend.lora.inject import Lora  # with peft, which takes half of the start of a tool that only reads files

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoraFile:
    """A LoRA as it lies in a file. pairs: module path -> A (r, in), B (out, r); scales: path -> alpha / r.

    factors: of a LoKr or LoHa, module path -> factor by LyCORIS' name -> tensor. lengths: of a DoRA, module path ->
    lengths of the changed weight's rows (out, 1). joined: layers whose factors are those of a whole LoKr of which they
    are rows.
    """

    pairs: dict[str, tuple[Tensor, Tensor]]
    scales: dict[str, float]
    metadata: dict[str, str]
    left_out: list[str] = field(default_factory=list)
    kind: Kind = "lora"
    factors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    lengths: dict[str, Tensor] = field(default_factory=dict)
    joined: dict[str, Native] = field(default_factory=dict)


def check_continue(
    path: Path, names: LayerNames, sizes: Mapping[str, Size], kind: Kind = "lora", factor: int | None = None
) -> Contents:
    """`inspect_lora`, and Refused when a network of this kind with these target layers can't hold what the file holds.

    sizes: target layers with their rank. A DoRA holds what a LoRA does, too. factor: of a LoKr, as in `factor_shapes`.
    """
    contents = inspect_lora(path, names)
    if contents.kind != kind and (contents.kind, kind) != ("lora", "dora"):
        text = f"{path.name} is {TITLES[contents.kind]}, and this run trains {TITLES[kind]}"
        raise Refused(text, f"Set network.network_type to {contents.kind}, or give another file.", SETTING)
    beside = {names.natives[path].stem for path in sizes if path in names.natives}
    # what the file says of the rest of a fused layer may be nothing: its values tell
    _refuse_lost(
        [p for p, stored in contents.layers.items() if not _joined(stored) or stored.native.stem not in beside], sizes
    )
    if kind in FACTORED:
        check_factors(contents, names, sizes, factor)
        return contents
    for layer, stored in contents.layers.items():
        # rows of a fused layer may need less than the whole rank: its values tell
        if not _joined(stored):
            _refuse_larger(layer, stored.rank or 0, sizes[layer].rank, stored.large)
    return contents


def read_lora(path: Path, names: LayerNames) -> LoraFile:
    """The LoRA, DoRA, LoKr or LoHa at `path`, on the CPU in float32. Refused as in `inspect_lora`.

    Where the file has a fused layer (query, key and value in one), each layer gets its own rows of B and of a DoRA's
    lengths, and the same A, which is exact. Without alpha, in the file or in what peft and diffusers write beside it,
    alpha is the rank.
    """
    contents = inspect_lora(path, names)
    configured = Configured.of(path, contents.metadata)
    file = LoraFile({}, {}, contents.metadata, contents.left_out, contents.kind)
    with safetensors.safe_open(path, framework="pt", device="cpu") as opened:
        for layer, stored in contents.layers.items():
            parts = {name: opened.get_tensor(key).float() for name, key in stored.keys.items()}
            alpha = parts.pop("alpha", None)
            if contents.kind in FACTORED:
                file.factors[layer] = own_factors(parts, stored.native, names.layers[layer][1])
                if contents.kind == "lokr" and stored.native is not None and (_joined(stored) or stored.native.turn):
                    file.joined[layer] = stored.native
                file.scales[layer] = 1.0 if alpha is None or stored.rank is None else float(alpha) / stored.rank
                continue
            a, rows = parts["A"].flatten(1), [parts["B"].flatten(1)]
            if MAGNITUDE in parts:
                rows.append(parts[MAGNITUDE].reshape(-1, 1))
            if stored.native is not None:
                rows = [own_rows(each, stored.native, names.layers[layer][1]) for each in rows]
            file.pairs[layer] = a, rows[0].contiguous()
            if MAGNITUDE in parts:
                file.lengths[layer] = rows[1]
            rank = a.shape[0]
            file.scales[layer] = configured.scale(layer, rank) if alpha is None else float(alpha) / rank
    return file


def continue_from(lora: Lora, file: LoraFile) -> list[str]:
    """Set `lora` to what `file` holds, at the same strength whatever its alpha; return what to say about it.

    A smaller rank of a LoRA is padded: the added rows of A keep their random start and the added columns of B are 0, so
    that the function is the same. Refused for a larger rank, other sizes, and layers that are no targets: they would be
    lost.
    """
    changed = [path for path in file.scales if path not in file.pairs or file.pairs[path][1].any()]
    _refuse_lost(changed, lora.layers)
    padded = set()
    with torch.no_grad():
        for path, factors in file.factors.items():
            set_factors(path, lora.parts(path), factors, file.scales[path] / lora.layers[path].scale)
        for path, pair in file.pairs.items():
            if path not in lora.layers:
                continue
            rank = _set_pair(lora, path, *pair, file.scales[path])
            if rank < lora.rank_of(path):
                padded.add((rank, lora.rank_of(path)))
    lora.publish()
    _set_lengths(lora, file)
    notes = [f"From the LoRA to continue from is left out: {what}." for what in file.left_out]
    if file.kind == "lora" and any(lora.magnitude(path) is not None for path in lora.layers):
        notes.append(
            "The LoRA to continue from is no DoRA yet; its rows keep their lengths, so that it draws the same."
        )
    for old, new in sorted(padded):
        notes.append(
            f"The LoRA to continue from has rank {old}; it was padded to {new} and draws the same until trained."
        )
    fresh = [path for path in lora.layers if path not in file.scales]
    if fresh:
        notes.append(
            f"{len(fresh)} target layers are not in the LoRA to continue from and start fresh ({fresh[0]} first)."
        )
    for sentence in notes:
        log.warning(sentence)
    return notes


def _set_pair(lora: Lora, path: str, a: Tensor, b: Tensor, scale: float) -> int:
    """Set A and B of one target to these, which may have further dimensions of a convolution; the rank that is set."""
    a, b = _narrowed(a.flatten(1), b.flatten(1), lora.rank_of(path))
    live_a, live_b = lora.pair(path)
    rank = a.shape[0]
    _refuse_larger(path, rank, lora.rank_of(path), live_a[0, 0].numel() > 1)
    if a[0].numel() != live_a[0].numel() or b.shape[0] != live_b.shape[0] or b.shape[1] != rank:
        size = f"{tuple(b.shape)} x {tuple(a.shape)}"
        text = f"{path} is {size} in the LoRA to continue from, another size than here"
        raise Refused(text, "Use a LoRA of the same base model.", SETTING)
    live_a[:rank].copy_(a.reshape(live_a[:rank].shape))
    live_b.zero_()
    live_b[:, :rank].copy_((b * (scale / lora.scale_of(path))).reshape(live_b[:, :rank].shape))
    return rank


@torch.no_grad()
def _set_lengths(lora: Lora, file: LoraFile) -> None:
    """Set the row lengths of a DoRA to the file's, or where it has none to what they are now."""
    for path in file.pairs:
        magnitude = lora.magnitude(path) if path in lora.layers else None
        if magnitude is not None:
            held = file.lengths.get(path)
            now = lora.lengths_now(path) if held is None else held
            magnitude.weight.copy_(now)


@dataclass(frozen=True)
class Configured:
    """Rank and alpha as peft (``adapter_config.json``) and diffusers (``lora_adapter_metadata``) keep them."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, metadata: Mapping[str, str]) -> Configured:
        """What lies in the file's metadata, or in a config beside a file that carries peft's name."""
        try:
            if "lora_adapter_metadata" in metadata:
                adapter = json.loads(metadata["lora_adapter_metadata"])
                return cls({key.partition(".")[2] or key: value for key, value in adapter.items()})
            beside = path.with_name("adapter_config.json")
            if path.name.startswith("adapter_model") and beside.is_file():
                return cls(json.loads(beside.read_text(encoding="utf-8")))
        except (OSError, ValueError, AttributeError) as error:
            text = f"What {path.name} says about rank and alpha can't be read: {error}"
            raise Refused(text, "Give a file that is whole.", SETTING) from error
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


def _joined(stored: FileLayer) -> bool:
    """Whether the file keeps a layer as one with others."""
    return stored.native is not None and len(stored.native.shares) > 1


def _refuse_lost(layers: Iterable[str], targets: Collection[str]) -> None:
    lost = [path for path in layers if path not in targets]
    if lost:
        text = (
            f"The LoRA to continue from also changes {len(lost)} layers that are no targets now ({', '.join(lost[:3])})"
        )
        remedy = "Add them to targets_include (conv_dim adds convolutions), or start from another LoRA."
        raise Refused(text, remedy, SETTING)


def _refuse_larger(path: str, held: int, rank: int, large: bool) -> None:
    if held > rank:
        text = f"The LoRA to continue from has rank {held} at {path}, larger than {rank} here"
        raise Refused(text, f"Set {'conv_dim' if large else 'network_dim'} to {held} or more.", SETTING)


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
