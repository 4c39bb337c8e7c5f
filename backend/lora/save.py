"""Writes a LoRA so that diffusers and ComfyUI load it at the strength it was trained at."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.files import write_atomic
from backend.base.tensor_names import is_clean
from backend.config.layer_patterns import MAGNITUDE
from backend.lora.comfyui_keys import Format, LayerNames
from backend.lora.lokr_loha import FactoredLayer
from backend.lora.native_names import Native
from backend.memory.cpu_threads import one_thread

if TYPE_CHECKING:
    from backend.lora.inject import Lora  # with peft, which takes half of the start of a tool that only reads files

log = logging.getLogger(__name__)

_EXACT = (".alpha", f".{MAGNITUDE}", ".lora_magnitude_vector.weight")

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class LoraNotFinite(ValueError):
    """A LoRA holds NaN or infinity: it is not written."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} holds NaN or infinity")


@dataclass(frozen=True)
class LayerWeights:
    """One layer's LoRA, to be written. a: (rank, in). b: (out, rank). scale: alpha / rank.

    lengths: of a DoRA, those of its rows, (out, 1).
    """

    a: Tensor
    b: Tensor
    scale: float
    lengths: Tensor | None = None

    @property
    def rank(self) -> int:
        """Rows of A."""
        return self.a.shape[0]


@one_thread()
def file_tensors(lora: Lora, precision: str, names: LayerNames, form: Format = "kohya") -> dict[str, Tensor]:
    """What goes into the file, on the CPU in `precision`, in the format `form`.

    Alpha is in float32, and a DoRA's lengths, whose rounding would change the base's own weights.

    LoraNotFinite when a value is NaN or infinite; Refused when one does not fit into `precision`.
    """
    layers = {}
    factors: dict[str, Tensor] = {}
    for path, layer in lora.layers.items():
        if isinstance(layer, FactoredLayer):
            name = names.factored_name(path)
            factors |= {f"{name}.{n}": p.detach().to("cpu", torch.float32) for n, p in lora.parts(path).items()}
            factors[f"{name}.alpha"] = torch.tensor(layer.scale * layer.rank)
            continue
        a, b = (half.detach().to("cpu", torch.float32) for half in lora.pair(path))
        magnitude = lora.magnitude(path)
        lengths = None if magnitude is None else magnitude.weight.detach().to("cpu", torch.float32)
        layers[path] = LayerWeights(a, b, lora.scale_of(path), lengths)
    dtype = PRECISIONS[precision]
    tensors = in_format(layers, names, form, lora.frozen_lengths) | factors
    cast = {
        key: value.to(value.dtype if key.endswith(_EXACT) else dtype).contiguous() for key, value in tensors.items()
    }
    for key, value in tensors.items():
        if not torch.isfinite(value).all():
            raise LoraNotFinite(key)
        if not torch.isfinite(cast[key]).all():
            text = f"{key} has values too large for {precision}"
            raise Refused(text, "Save as bf16 or fp32.", "saving.save_precision")
    return cast


def check_savable(lora: Lora, names: LayerNames, form: Format) -> None:
    """Refused, with the first layer that is meant, when `file_tensors` could not write the layout `form`.

    Run before the first step on shapes alone, so that no training is lost to a layer that no file can hold.
    """
    layers = {}
    for path, layer in lora.layers.items():
        if not isinstance(layer, FactoredLayer):
            a, b = (half.detach().to("meta") for half in lora.pair(path))
            magnitude = lora.magnitude(path)
            layers[path] = LayerWeights(a, b, 1.0, None if magnitude is None else magnitude.weight.detach().to("meta"))
    beside = {path: each.to("meta") for path, each in lora.frozen_lengths.items()}
    for name, paths in _together(layers, names, form).items():
        try:
            in_format({path: layers[path] for path in paths}, names, form, beside)
        except (RuntimeError, ValueError, IndexError) as error:
            text = f"The LoRA of {paths[0]} can't be written in the layout {form} (as {name}): {error}"
            other = "diffusers" if form == "kohya" else "kohya"
            remedy = f"Set save_layout to {other}, or leave the layer out with targets_exclude."
            raise Refused(text, remedy, "saving.save_layout") from error


def in_format(
    layers: Mapping[str, LayerWeights], names: LayerNames, form: Format, beside: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The LoRAs of `layers` (by module path) as tensors under the keys of the format `form`.

    diffusers: no alpha, B carries alpha / rank. diffusers takes alpha from metadata of its own only, ComfyUI and others
    from a key, and where there is neither, all of them take alpha = rank: so the file means one thing to all.
    kohya: alpha has a key. Layers that are one in the project's own names (query, key and value of FLUX) are written as
    that one: A stacked, B in blocks with zeros between, which is exact. beside: row lengths of frozen layers that are
    one there with those of a DoRA.
    """
    tensors: dict[str, Tensor] = {}
    if form == "diffusers":
        for path, one in layers.items():
            name = names.out_name(path, form)
            tensors[f"{name}.lora_A.weight"] = one.a
            tensors[f"{name}.lora_B.weight"] = one.b * one.scale
            if one.lengths is not None:
                # peft's shapes; it takes the key without .weight too, but transformers does not
                shape = (1, -1, 1, 1) if one.b.dim() == 4 else (-1,)
                tensors[f"{name}.lora_magnitude_vector.weight"] = one.lengths.reshape(shape)
        return tensors
    for name, paths in _together(layers, names, form).items():
        one = _as_one({path: layers[path] for path in paths}, names, beside or {})
        tensors[f"{name}.lora_down.weight"] = one.a
        tensors[f"{name}.lora_up.weight"] = one.b
        tensors[f"{name}.alpha"] = torch.tensor(one.scale * one.rank)
        if one.lengths is not None:
            tensors[f"{name}.{MAGNITUDE}"] = one.lengths.reshape(-1, *(1,) * (one.b.dim() - 1))
    return tensors


def _together(layers: Iterable[str], names: LayerNames, form: Format) -> dict[str, list[str]]:
    """What comes before the ending of keys -> the layers that are written under it."""
    together: dict[str, list[str]] = {}
    for path in layers:
        together.setdefault(names.out_name(path, form), []).append(path)
    return together


def _as_one(parts: Mapping[str, LayerWeights], names: LayerNames, beside: Mapping[str, Tensor]) -> LayerWeights:
    """The LoRA of the layer in the project's own names that `parts` are rows of; a part itself where it is all."""
    if not names.kohya_native or not parts.keys() <= names.natives.keys():
        (only,) = parts.values()
        return only
    ordered = sorted(parts.items(), key=lambda part: names.natives[part[0]].number)
    (first, one), native = ordered[0], names.natives[ordered[0][0]]
    if len({names.natives[path].number for path in parts}) < len(parts):
        raise ValueError(f"{' and '.join(parts)} have one name there")
    if len(native.shares) == 1:
        lengths = None if one.lengths is None else _turned(one.lengths, native)
        return replace(one, b=_turned(one.b, native), lengths=lengths)
    a, scale, column = torch.cat([one.a for _, one in ordered]), one.scale, 0
    rows = native.rows(one.b.shape[0])[2]
    b = one.b.new_zeros(rows, a.shape[0], *one.b.shape[2:])
    for path, one in ordered:
        start, end, _ = names.natives[path].rows(one.b.shape[0])
        part = one.b * (one.scale / scale) if one.scale != scale else one.b
        b[start:end, column : column + one.rank] = _turned(part, names.natives[path])
        column += one.rank
    lengths = None
    if parts[first].lengths is not None:
        frozen = {path: each for path, each in beside.items() if names.natives[path].stem == native.stem}
        lengths = b.new_zeros(rows, 1)
        for path, each in (frozen | {path: one.lengths for path, one in ordered}).items():
            start, end, _ = names.natives[path].rows(each.shape[0])
            lengths[start:end] = _turned(each, names.natives[path])
    return LayerWeights(a, b, scale, lengths)


def _turned(rows: Tensor, native: Native) -> Tensor:
    """`rows` of a layer in the order that they have in the project's own."""
    return torch.cat(rows.chunk(2)[::-1]) if native.turn == "swap_halves" else rows


def lora_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The file as bytes: `tensors`, `metadata` and hashes of the weights, as the tools that read them compute them.

    ``modelspec.hash_sha256`` is ModelSpec 1.0.1's: SHA-256 of all that comes after the header. ``sshs_model_hash`` is
    the same in sd-scripts' spelling. ``sshs_legacy_hash`` is the first 8 digits of the SHA-256 of 64 KiB from 1 MiB on,
    of the file as it would be with its ``ss_*`` metadata alone (sd-scripts ``train_util.py``).
    """
    readable = {key: value for key, value in metadata.items() if key.startswith("ss_")}
    plain = safetensors.torch.save(dict(tensors), metadata=readable)
    digest = hashlib.sha256(plain[8 + int.from_bytes(plain[:8], "little") :]).hexdigest()
    legacy = hashlib.sha256(plain[0x100000 : 0x100000 + 0x10000]).hexdigest()[:8]
    hashes = {"modelspec.hash_sha256": f"0x{digest}", "sshs_model_hash": digest, "sshs_legacy_hash": legacy}
    return safetensors.torch.save(dict(tensors), metadata={**metadata, **hashes})


def write_lora(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the file whole or not at all (`backend.base.files.write_atomic`), and read its header back."""
    assert is_clean(tensors)
    data = lora_bytes(tensors, metadata)
    write_atomic(path, data)
    with path.open("rb") as stream:
        header = json.loads(stream.read(8 + int.from_bytes(data[:8], "little"))[8:])
    assert header.keys() - {"__metadata__"} == tensors.keys(), f"{path} does not hold what was written"
    log.info("Saved %s: %d tensors, %.1f MB", path, len(tensors), len(data) / 1e6)
