"""Defines frozen linear layers with quantised weights, for which LoRA, block swap and the compiler need no changes.

Own modules and not torchao's or bitsandbytes': weight, scale and copy are plain tensors, which block swap streams
without knowing of formats; the layer is an ``nn.Linear``, which peft wraps as such; and the 8-bit matrix products
work on the same storage.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from backend.memory.product_ways import Way, way_of
from backend.memory.quantized_formats import quantize
from backend.memory.quantized_matmul import product
from backend.memory.rotation import rotated, rotation
from backend.plan.memory.weight_bytes import multiplied_in_8_bits, quantises


class QuantizedLinear(nn.Linear):
    """A linear layer whose frozen weight is kept in 8 or 4 bits.

    weight: the numbers, a Parameter without gradient (out, in), or (out, in / 2) for NF4; scale: a buffer; formats as
    in `backend.memory.quantized_formats`. kind: "fp8", "int8" or "nf4". way: how it multiplies; with a copy, `copy` is
    a buffer (in, out) of the same numbers, outside of the state dict. With rotated inputs the weight's rows are rotated
    too. The matrix is no buffer: all layers share it, and it stays on the device that computes.
    """

    def __init__(self, weight: Tensor, kind: str, way: Way | None = None, bias: nn.Parameter | None = None) -> None:
        """Quantise `weight` (out, in), in any floating format, where it lies. way: None dequantises."""
        with torch.device("meta"):
            super().__init__(weight.shape[1], weight.shape[0], bias=False)
        self.kind, self.way = kind, way or Way()
        # for compiled code: plain strings
        self.kernels = (self.way.forward, self.way.backward)
        turn = rotation(self.in_features, weight.device) if self.way.rotates else None
        numbers, scale = quantize(weight if turn is None else rotated(weight.float(), turn), kind)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.bias = bias
        self.register_buffer("scale", scale)
        self.register_buffer("copy", numbers.t().contiguous() if self.way.copies else None, persistent=False)
        self.turn = turn

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), in autocast's format where that is on, else in that of `x`."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rows = x.reshape(-1, self.in_features)
        out = self._product(rows, self.kernels).reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def dequantised_product(self, x: Tensor) -> Tensor:
        """``x W^T`` (rows, out) of `x` (rows, in), with the weight brought to the format of `x`."""
        return self._product(x, ("dequantised", "dequantised"))

    def _product(self, rows: Tensor, kernels: tuple[str, str]) -> Tensor:
        return product(rows, self.weight, self.scale, self.copy, self.turn, self.kind, kernels)

    def keep_on(self, device: torch.device) -> None:
        """Move the weight, and what belongs to it alone, to `device`."""
        self.weight.data, self.scale = self.weight.data.to(device), self.scale.to(device)
        self.copy = None if self.copy is None else self.copy.to(device)

    def extra_repr(self) -> str:
        """The layer's sizes and format."""
        return f"{super().extra_repr()}, {self.kind}, {self.way}"


def quantized_layers(model: nn.Module) -> list[str]:
    """Paths of the linear layers of `model`, on any device, that `quantize_layer` is for."""
    return [
        path
        for path, layer in model.named_modules()
        if type(layer) is nn.Linear and quantises(f"{path}.weight", tuple(layer.weight.shape))
    ]


def quantize_layer(
    model: nn.Module, path: str, weight: Tensor, kind: str, compute: str = "bf16", products: str = "small"
) -> QuantizedLinear:
    """Put the quantised `weight` (out, in) in place of the linear layer at `path`, whose bias stays.

    compute and products: as `backend.memory.product_ways.way_of` has them. On a GPU layers that gain nothing from
    8 bits dequantise whatever is asked for.
    """
    gains = not weight.is_cuda or multiplied_in_8_bits(f"{path}.weight", tuple(weight.shape))
    way = way_of(compute, products, weight.device) if gains else Way()
    layer = QuantizedLinear(weight, kind, way, model.get_submodule(path).bias)
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)
    return layer


def products_words(model: nn.Module) -> str:
    """How the quantised layers of `model` multiply, in words for a log."""
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedLinear)]
    ways = Counter((layer.kind, layer.kernels) for layer in layers if layer.way != Way())
    words = [f"{count} {kind} (forward {kernels[0]}, backward {kernels[1]})" for (kind, kernels), count in ways.items()]
    copies = sum(layer.copy.nbytes for layer in layers if layer.copy is not None)
    rest = len(layers) - sum(ways.values())
    text = f"8-bit products: {', '.join(words) or 'none'}; dequantised: {rest}"
    return text + (f"; transposed copies of {copies / 1e9:.2f} GB" if copies else "")
