"""Computes LoRA layers of one input with one product for all their A: q, k, v of an attention, and others.

A x of three layers reads x three times and its gradient writes a tensor of x's size three times; the stacked A does
each once. The numbers are the same. A family's attention calls `apply_together`, which joins only layers that `fuse`
marked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backend.lora.dora import magnitude_of, rescaled
from backend.lora.inject import ADAPTER, Lora


def fuse(lora: Lora) -> None:
    """Let every layer of `lora` join the others of its input. ValueError with dropout, which differs by layer."""
    for path, layer in lora.layers.items():
        if getattr(layer.lora_dropout[ADAPTER], "p", 0.0) > 0:
            raise ValueError(f"{path} has dropout: its input is another than that of the layers beside it")
        if layer.lora_A[ADAPTER]._forward_hooks:
            raise ValueError(f"{path} has dropout of what its A gives, which one product of several A passes by")
        layer.fused = True


def is_fused(layer: nn.Module) -> bool:
    """True for a LoRA layer that may join others; not where its forward was replaced, as outside of compiled graphs."""
    return getattr(layer, "fused", False) and "forward" not in layer.__dict__


def apply_together(x: Tensor, *layers: Any) -> tuple[Tensor, ...]:
    """What each of `layers` gives for `x` (..., in features); their A are one product where `fuse` allowed it."""
    joined = [layer for layer in layers if is_fused(layer)]
    if len(joined) < 2:
        return tuple(layer(x) for layer in layers)
    stacked = torch.cat([layer.lora_A[ADAPTER].weight for layer in joined])
    low = nn.functional.linear(joined[0]._cast_input_dtype(x, stacked.dtype), stacked)
    parts = iter(low.split([layer.lora_A[ADAPTER].weight.shape[0] for layer in joined], dim=-1))
    return tuple(_raised(layer, x, next(parts)) if is_fused(layer) else layer(x) for layer in layers)


def _raised(layer: Any, x: Tensor, low: Tensor) -> Tensor:
    """W x + (alpha / rank) B `low`, as peft's layer computes it; or what `rescaled` makes of both in a DoRA."""
    base, added = layer.base_layer(x), layer.lora_B[ADAPTER](low)
    if magnitude_of(layer, ADAPTER) is not None:
        return rescaled(layer, ADAPTER, base, added).to(base.dtype)
    return (base + added * layer.scaling[ADAPTER]).to(base.dtype)
