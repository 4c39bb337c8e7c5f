"""Converts the factors of a LoKr or LoHa file to those that are trained here.

Names and shapes are LyCORIS' (``lycoris/modules/lokr.py``, ``loha.py``). Of a LoKr each factor may be whole there, or a
product of two; here w1 is always whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.config.layer_patterns import Size, factor_shapes
from backend.lora.comfyui_keys import LayerNames
from backend.lora.file_contents import SETTING, TITLES, Contents, FileLayer, Shapes
from backend.lora.native_names import Native


def check_factors(contents: Contents, names: LayerNames, sizes: Mapping[str, Size], factor: int | None) -> None:
    """Refused when target layers of these ranks, trained with this factor, can't hold the LoKr or LoHa of a file.

    Factors of another rank or size are no part of each other, so that unlike a LoRA's they can't be padded.
    """
    kind, title = contents.kind, TITLES[contents.kind].removeprefix("a ")
    whole: dict[str, int] = {}
    for path, stored in contents.layers.items():
        rank, native = sizes[path].rank, stored.native
        if kind == "lokr" and native is not None and (len(native.shares) > 1 or native.turn):
            text = f"The LoKr to continue from has one product for {native.stem}, of which {path} is a part"
            raise Refused(text, "Use a LoKr that was trained on diffusers' layers, or start afresh.", SETTING)
        if stored.rank is not None and stored.rank != rank:
            text = f"The {title} to continue from has rank {stored.rank} at {path}, and here it has {rank}"
            raise Refused(text, f"Set network_dim to {stored.rank}; only a LoRA can be padded.", SETTING)
        if kind == "lokr":
            wanted = factor_shapes(kind, *names.layers[path], rank, factor)
            first = _size_of("lokr_w1", stored, contents.shapes)
            if first != wanted["lokr_w1"]:
                text = f"The small factor of {path} is {_spoken(first)} in the LoKr to continue from, and here it is "
                remedy = _factor_like(first, names.layers[path], rank)
                raise Refused(text + _spoken(wanted["lokr_w1"]), remedy, SETTING)
            if "lokr_w2" in stored.keys and "lokr_w2" not in wanted:
                whole[path] = math.ceil(max(_size_of("lokr_w2", stored, contents.shapes)) / 2)
    if whole:
        path, least = max(whole.items(), key=lambda one: one[1])
        text = f"The large factor of {path} is whole in the LoKr to continue from, and has rank {sizes[path].rank} here"
        raise Refused(text, f"Set network_dim to {least} or more, which keeps it whole.", SETTING)


def own_factors(parts: Mapping[str, Tensor], native: Native | None, out_features: int) -> dict[str, Tensor]:
    """The factors of one layer; of a LoHa whose layer is fused in the file, its own rows. Products of w1 are made."""
    factors = {name: part.flatten(1) for name, part in parts.items()}
    if native is not None and "hada_w1_a" in factors:
        for name in ("hada_w1_a", "hada_w2_a"):
            factors[name] = own_rows(factors[name], native, out_features)
    if "lokr_w1_a" in factors:
        factors["lokr_w1"] = factors.pop("lokr_w1_a") @ factors.pop("lokr_w1_b")
    return factors


def own_rows(rows: Tensor, native: Native, out_features: int) -> Tensor:
    """Those of `rows` (out features of a fused layer first) that belong to one layer, in its own order."""
    start, end, _ = native.rows(out_features)
    return torch.cat(rows[start:end].chunk(2)[::-1]) if native.turn == "swap_halves" else rows[start:end]


def set_factors(path: str, live: Mapping[str, nn.Parameter], factors: Mapping[str, Tensor], strength: float) -> None:
    """Set the trained factors of a layer to those of a file, its change times `strength`.

    Refused where they have other sizes.
    """
    values = dict(factors)
    if "lokr_w2" in live and "lokr_w2_a" in values:
        values["lokr_w2"] = values.pop("lokr_w2_a") @ values.pop("lokr_w2_b")
    sizes = {name: tuple(value.shape) for name, value in values.items()}
    if sizes != {name: tuple(value.shape) for name, value in live.items()}:
        text = f"{path} has factors {sizes} in the file to continue from, others than here"
        raise Refused(text, "Set network_dim and lokr_factor as they were.", SETTING)
    for name, value in values.items():
        first = name in ("lokr_w1", "hada_w1_a")
        live[name].copy_(value * strength if first else value)


def _size_of(name: str, stored: FileLayer, shapes: Shapes) -> tuple[int, int]:
    """Rows and columns of a LoKr's factor, made of one tensor or of two."""
    if name in stored.keys:
        whole = shapes[stored.keys[name]]
        return whole[0], math.prod(whole[1:])
    return shapes[stored.keys[f"{name}_a"]][0], math.prod(shapes[stored.keys[f"{name}_b"]][1:])


def _factor_like(first: tuple[int, int], size: tuple[int, int], rank: int) -> str:
    """What to set so that the small factor is as large as `first`."""
    for factor in (None, max(first)):
        if factor_shapes("lokr", *size, rank, factor)["lokr_w1"] == first:
            remedy = "Leave lokr_factor empty" if factor is None else f"Set lokr_factor to {factor}"
            return f"{remedy}, as it was there."
    return "Its layers were cut another way: start afresh, or from another file."


def _spoken(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
