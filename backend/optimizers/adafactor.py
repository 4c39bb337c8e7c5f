"""Steps Adafactor (Shazeer and Stern, arXiv 1804.04235) as torch does, without waiting for the GPU.

torch's reads two lengths of each tensor back to the CPU in each step, to compute the rate with them there. Here that is
computed on the device; state, arguments and results are torch's, the results to the last bits of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adafactor as TorchAdafactor


class Adafactor(TorchAdafactor):
    """torch.optim.Adafactor, whose states it loads; with ``foreach`` it is that itself."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all tensors that have a gradient; what `closure` returns, if there is one."""
        if any(group["foreach"] for group in self.param_groups):
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved: tuple[list[Any], ...] = ([], [], [], [], [], [])
            self._init_group(group, *moved)
            for weight, gradient, row, column, variance, count in zip(*moved, strict=True):
                _move(group, weight, -gradient if group["maximize"] else gradient, row, column, variance, count)
        return loss


def _move(
    group: dict[str, Any],
    weight: Tensor,
    gradient: Tensor,
    row: Tensor | None,
    column: Tensor | None,
    variance: Tensor | None,
    count: Tensor,
) -> None:
    """Step one tensor. row (..., n, 1), column (..., 1, m): factors of the mean square; variance: that of a vector."""
    smallest, least_length = group["eps"]
    smallest = torch.finfo(weight.dtype).eps if smallest is None else smallest
    rate = float(group["lr"])
    count += 1
    steps = float(count)  # torch keeps it on the CPU
    new = steps ** group["beta2_decay"]
    relative = min(rate, steps**-0.5)
    length = weight.norm(2).mul_(relative / weight.numel() ** 0.5).clamp_(min=least_length * relative)
    if group["weight_decay"]:
        weight.mul_(1 - rate * group["weight_decay"])
    if row is not None and column is not None:
        row.lerp_(gradient.norm(dim=-1, keepdim=True).square_().div_(gradient.size(-1)), new)
        column.lerp_(gradient.norm(dim=-2, keepdim=True).square_().div_(gradient.size(-2)), new)
        square = (row @ column).div_(row.mean(dim=-2, keepdim=True).clamp_(min=smallest))
    else:
        assert variance is not None, "a vector has a variance"
        square = variance.lerp_(gradient * gradient, new).clone()
    update = square.clamp_(min=smallest * smallest).rsqrt_().mul_(gradient)
    # a step that is longer than usual is shortened
    excess = update.norm(2).div_(update.numel() ** 0.5 * group["d"]).clamp_(min=1.0)
    weight.addcmul_(update, length.div_(excess), value=-1.0)
