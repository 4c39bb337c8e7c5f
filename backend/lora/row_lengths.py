"""Measures the lengths of weights' rows, frozen and changed by a LoRA, as DoRA needs them (`backend.lora.dora`).

Nothing here needs peft, whose import takes half of the start of a tool that only reads files.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from backend.memory.quantized_formats import dequantize
from backend.memory.quantized_linear import QuantizedLinear

if TYPE_CHECKING:
    from backend.lora.comfyui_keys import LayerNames

_SHORTEST = 1e-12
"""Square of the length that a row of zeros counts as."""


@torch.no_grad()
def changed_lengths(layer: Any, adapter: str) -> Tensor:
    """``|W + s B A|`` of each row (out,), float32, without gradient."""
    frozen, scale = layer.get_base_layer(), layer.scaling[adapter]
    # the format that the frozen product has, and full precision for the rest
    kind = frozen.weight.device.type
    computed = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    with torch.autocast(kind, enabled=False):
        a = layer.lora_A[adapter].weight.flatten(1).float()
        b = layer.lora_B[adapter].weight.flatten(1).float()
        # a swapped block's weights lie elsewhere until swapping begins
        beside = _product(a.to(frozen.weight.device), frozen, computed).to(b.device, torch.float32).t()
        change = 2 * (b * beside).sum(1) + scale * (b * (b @ (a @ a.t()))).sum(1)
        return lengths_of(layer.lora_magnitude_vector[adapter].squares.to(b.device) + scale * change)


@torch.no_grad()
def row_lengths(frozen: nn.Module) -> Tensor:
    """The length of each row of a frozen layer's weight, (out,) float32, where the weight lies."""
    weight = frozen.weight
    if isinstance(frozen, QuantizedLinear):
        weight = dequantize(weight, frozen.scale, frozen.kind, torch.float32)
    return torch.linalg.vector_norm(weight.flatten(1), dim=1, dtype=torch.float32)


def frozen_lengths(model: nn.Module, targets: Collection[str], names: LayerNames) -> dict[str, Tensor]:
    """Row lengths (out, 1) of frozen layers that are one with a target in the project's own names, on the CPU."""
    joined = {native.stem for path, native in names.natives.items() if path in targets and len(native.shares) > 1}
    frozen = [path for path, native in names.natives.items() if native.stem in joined and path not in targets]
    return {path: row_lengths(model.get_submodule(path))[:, None].cpu() for path in frozen}


def lengths_of(squares: Tensor) -> Tensor:
    """Lengths of rows by their squares; a row of zeros, which nothing can be divided by, is a little longer."""
    return squares.clamp(min=_SHORTEST).sqrt()


def _product(a: Tensor, frozen: nn.Module, computed: torch.dtype | None) -> Tensor:
    """``a W^T`` (rank, out) of `a` (rank, in). computed: autocast's format."""
    if isinstance(frozen, QuantizedLinear):
        return frozen.dequantised_product(a.to(computed or a.dtype))
    weight = frozen.weight.flatten(1)
    return nn.functional.linear(a.to(weight.dtype), weight)
