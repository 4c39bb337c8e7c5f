"""Keeps float32 master copies of 16-bit weights, which the optimizer updates (Micikevicius et al., 1710.03740)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Masters:
    """Float32 masters of `weights`, which turn to `dtype` in place.

    The optimizer moves the masters and saves come from them, so that a step smaller than `dtype` can show is not lost.
    Gradients are summed in float32 over the batches of a step.
    """

    def __init__(self, weights: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self.live = list(weights)
        self.parameters = [nn.Parameter(weight.detach().to(torch.float32, copy=True)) for weight in weights]
        for weight in self.live:
            weight.data = weight.data.to(dtype)
        self._of = {id(weight): master for weight, master in zip(self.live, self.parameters, strict=True)}

    def of(self, weight: nn.Parameter) -> nn.Parameter:
        """The master of a weight; a weight that has none itself."""
        return self._of.get(id(weight), weight)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients of a backward pass to those of the masters, and let go of them."""
        pairs = [(m, w.grad) for m, w in zip(self.parameters, self.live, strict=True) if w.grad is not None]
        if not pairs:
            return
        wide = [torch.empty_like(master) for master, _ in pairs]
        torch._foreach_copy_(wide, [gradient for _, gradient in pairs])
        summed = [(m, g) for (m, _), g in zip(pairs, wide, strict=True) if m.grad is not None]
        if summed:
            torch._foreach_add_([m.grad for m, _ in summed], [g for _, g in summed])
        for (master, _), gradient in zip(pairs, wide, strict=True):
            if master.grad is None:
                master.grad = gradient
        for weight in self.live:
            weight.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the weights."""
        torch._foreach_copy_(self.live, self.parameters)
