"""Defines frozen linear layers with quantised weights, for which LoRA, block swap and the compiler need no changes.

Own modules and not torchao's or bitsandbytes': weight and scale are plain tensors, which block swap streams without
knowing of formats; the layer is an ``nn.Linear``, which peft wraps as such; and the 8-bit matrix products work on the
same storage.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backend.memory.quantized_formats import quantize
from backend.memory.quantized_matmul import product
from backend.plan.memory.weight_bytes import quantises


class QuantizedLinear(nn.Linear):
    """A linear layer whose frozen weight is kept in 8 or 4 bits.

    weight: the numbers, a Parameter without gradient (out, in), or (out, in / 2) for NF4; scale: a buffer; formats as
    in `backend.memory.quantized_formats`. kind: "fp8", "int8" or "nf4". compute: "bf16" (dequantised), "int8" or "fp8".
    """

    def __init__(self, weight: Tensor, kind: str, compute: str = "bf16", bias: nn.Parameter | None = None) -> None:
        """Quantise `weight` (out, in), in any floating format, where it lies."""
        with torch.device("meta"):
            super().__init__(weight.shape[1], weight.shape[0], bias=False)
        numbers, scale = quantize(weight, kind)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.bias = bias
        self.register_buffer("scale", scale)
        self.kind, self.compute = kind, compute

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), in autocast's format where that is on, else in that of `x`."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rows = x.reshape(-1, self.in_features)
        out = product(rows, self.weight, self.scale, self.kind, self.compute).reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def extra_repr(self) -> str:
        """The layer's sizes and format."""
        return f"{super().extra_repr()}, {self.kind}, computes in {self.compute}"


def quantized_layers(model: nn.Module) -> list[str]:
    """Paths of the linear layers of `model`, on any device, that `quantize_layer` is for."""
    return [
        path
        for path, layer in model.named_modules()
        if type(layer) is nn.Linear and quantises(f"{path}.weight", tuple(layer.weight.shape))
    ]


def quantize_layer(model: nn.Module, path: str, weight: Tensor, kind: str, compute: str = "bf16") -> QuantizedLinear:
    """Put the quantised `weight` (out, in) in place of the linear layer at `path`, whose bias stays."""
    layer = QuantizedLinear(weight, kind, compute, model.get_submodule(path).bias)
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)
    return layer
