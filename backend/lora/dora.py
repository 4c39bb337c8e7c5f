"""Computes DoRA: a LoRA whose rows are brought to lengths that are trained too (Liu et al., arXiv 2402.09353).

``W' = m (W + s B A) / |W + s B A|``, the length taken of each output's row (of a convolution over all of its kernel),
as peft and LyCORIS take it. ComfyUI and Forge divide by ``|W|`` instead, which for a small change is nearly the same
(`backend.plan.lora_findings` tells of it). For gradients the length is a constant (section 4.3 of the paper), as in
peft.

The changed weight is never made: ``|W + s B A|^2`` is ``|W|^2``, which is measured once, and two products of the rank's
size. Nor is its product with the input: the layer's output and the LoRA's are scaled together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backend.lora.dropout import acts, kept
from backend.lora.peft_layers import LoraLayer, LoraVariant
from backend.lora.row_lengths import changed_lengths, lengths_of, row_lengths


class Magnitude(nn.Module):
    """The trained lengths `weight` (out, 1) of a layer's rows, float32 whatever the LoRA's format.

    squares: of the frozen rows' lengths, (out,). dropout: how often the layer's change is left out in training, lengths
    included (module_dropout). strength: how much of the change acts; 1 but for samples. No buffer, since a swapped
    block's buffers are brought back from the host before each use.
    """

    def __init__(self, squares: Tensor, device: torch.device | None, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.register_buffer("squares", squares, persistent=False)
        start = lengths_of(squares)[:, None].to(device=device or squares.device, copy=True)
        self.weight = nn.Parameter(start)
        self.strength = torch.ones((), device=start.device)

    def acting(self) -> Tensor:
        """`strength`, or 0 where dropout leaves the change out; shape ()."""
        return self.strength * kept(self.strength, self.dropout) if self.dropout and acts(self) else self.strength


class DoraVariant(LoraVariant):
    """How peft's LoRA layer uses a `Magnitude`."""

    @staticmethod
    def forward(module: Any, active_adapter: str, x: Tensor, result: Tensor, **kwargs: Any) -> Tensor:
        """The layer's output for `x`, of whose frozen part `result` is the output. Dropout acts on A's input alone."""
        low = module.lora_A[active_adapter](module.lora_dropout[active_adapter](x))
        return rescaled(module, active_adapter, result, module.lora_B[active_adapter](low))


def decompose(layer: LoraLayer, adapter: str, device: torch.device | None, dropout: float = 0.0) -> None:
    """Turn `layer`, whose B is 0, into a DoRA that changes nothing yet. device: None for the frozen weight's.

    dropout: as in `Magnitude`.
    """
    squares = row_lengths(layer.get_base_layer()).square()
    layer.lora_magnitude_vector[adapter] = Magnitude(squares, device, dropout)
    layer.lora_variant[adapter] = DoraVariant


def magnitude_of(layer: nn.Module, adapter: str) -> Magnitude | None:
    """The lengths of a layer that is a DoRA; None of any other."""
    vectors = getattr(layer, "lora_magnitude_vector", None)
    return vectors[adapter] if vectors else None


def rescaled(layer: Any, adapter: str, base: Tensor, low: Tensor) -> Tensor:
    """What the layer gives: `base` from the frozen weight and bias, `low` from B A; both (..., out) or N, out, H, W.

    ``base + t (s low + (m / |W + s B A| - 1) (base - bias + s low))`` with t the strength: with t = 1 this is DoRA's
    output, and exactly `base` at the start. Another t takes that share of the way from W to W', as ComfyUI does.
    """
    magnitude: Magnitude = layer.lora_magnitude_vector[adapter]
    added = low * layer.scaling[adapter]
    frozen, shape = layer.get_base_layer(), (-1, 1, 1) if base.dim() == 4 and _is_conv(layer) else (-1,)
    whole = base + added
    if frozen.bias is not None:
        whole = whole - frozen.bias.reshape(shape).to(whole.dtype)
    longer = magnitude.weight.flatten() / changed_lengths(layer, adapter) - 1
    acting = magnitude.acting()
    longer = (longer * acting).to(whole.dtype).reshape(shape)
    return base + added * acting + whole * longer


def _is_conv(layer: Any) -> bool:
    return isinstance(layer.get_base_layer(), nn.Conv2d)
