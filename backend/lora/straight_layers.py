"""Computes a LoRA layer without the questions that peft's own forward asks at each call.

torch's compiler traces those in each layer of a block at each start, and guards their answers at each step.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from backend.lora.peft_layers import LoraLinear


class StraightLinear(LoraLinear):
    """peft's layer of one adapter; where it is switched off, merged, or no plain LoRA, peft's forward computes it."""

    adapter: str

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """W x + (alpha / rank) B A x, (..., in features) -> (..., out features), as peft does."""
        if args or kwargs or self._disable_adapters or self.merged_adapters or self.lora_variant:
            return super().forward(x, *args, **kwargs)
        name, low = self.adapter, x
        a = self.lora_A[name]
        result = self.base_layer(x)
        if self.cast_input_dtype_enabled and x.dtype != a.weight.dtype:
            low = x.to(dtype=a.weight.dtype)
        added = self.lora_B[name](a(self.lora_dropout[name](low))) * self.scaling[name]
        return (result + added).to(result.dtype)


def straighten(layer: Any, adapter: str) -> None:
    """Let `layer`, whose only adapter is `adapter`, compute so, if it is a linear one of peft's own class."""
    if type(layer) is LoraLinear:
        layer.__class__ = StraightLinear
        layer.adapter = adapter
