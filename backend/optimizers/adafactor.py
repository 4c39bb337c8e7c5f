"""Steps Adafactor (Shazeer and Stern, arXiv 1804.04235) as torch does, without waiting for the GPU.

torch's reads two lengths of each tensor back to the CPU in each step, to compute the rate with them there. Here that is
computed on the device; state, arguments and results are torch's, the results to the last bits of float32. A weight can
also be stepped where it is stored, in one compiled function: of 16 bits, without a float32 copy in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adafactor as TorchAdafactor

from backend.optimizers.compiled_step import CompiledStep, store


class Adafactor(TorchAdafactor):
    """torch.optim.Adafactor, whose states it loads; with ``foreach`` it is that itself."""

    _latest: tuple[tuple[torch.device, _Numbers], Tensor] | None = None

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
                count += 1
                # torch keeps it on the CPU
                numbers = _Numbers.of(group, float(count), weight.dtype)
                _move(weight, -gradient if group["maximize"] else gradient, row, column, variance, numbers)
        return loss

    def can_step_stored(self, group: Mapping[str, Any]) -> bool:
        """Whether `step_stored` may be used for tensors of this group."""
        return not group["foreach"] and not group["maximize"]

    def step_stored(self, group: Mapping[str, Any], weight: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """Move one tensor as it is stored (float32 or bf16, contiguous or not) by a compiled function.

        gradient: as large, of either format. state: filled here where it is empty, as torch's `step` would.
        """
        if not state:
            state.update(_first_state(weight))
        state["step"] += 1
        numbers = self._numbers_on(weight.device, _Numbers.of(group, float(state["step"])))
        parts = (state.get("row_var"), state.get("col_var"), state.get("variance"))
        _compiled()(weight, gradient, *parts, numbers)

    def _numbers_on(self, device: torch.device, numbers: _Numbers) -> Tensor:
        """The numbers on a device. Nearly all tensors of a step have the same."""
        key = (device, numbers)
        if self._latest is None or self._latest[0] != key:
            self._latest = key, torch.tensor(astuple(numbers), dtype=torch.float32).to(device, non_blocking=True)
        return self._latest[1]


def _first_state(weight: Tensor) -> dict[str, Tensor]:
    """State of a tensor before its first step, as torch begins it."""
    zeros = functools.partial(torch.zeros, dtype=torch.float32, device=weight.device)
    state = {"step": torch.tensor(0.0, dtype=torch.float32)}
    if weight.dim() < 2:
        return state | {"variance": zeros(weight.shape)}
    *before, height, width = weight.shape
    return state | {"row_var": zeros(*before, height, 1), "col_var": zeros(*before, 1, width)}


@functools.cache
def _compiled() -> CompiledStep:
    return CompiledStep(_move_stored)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What changes from step to step or from group to group; floats, or tensors () on the weight's device."""

    new: Any
    """Share of this step's squares in their mean."""
    relative: Any
    """Rate, as a share of the weight's length."""
    kept: Any
    """What weight decay leaves of the weight, 1 for all."""
    smallest: Any
    least_length: Any
    longest: Any
    """Mean length of an update above which it is shortened."""

    @classmethod
    def of(cls, group: Mapping[str, Any], steps: float, dtype: torch.dtype = torch.float32) -> _Numbers:
        """Those of a group's tensor, stepped in `dtype`, at its step number `steps`."""
        smallest, least_length = group["eps"]
        rate = float(group["lr"])
        return cls(
            steps ** group["beta2_decay"],
            min(rate, steps**-0.5),
            1 - rate * group["weight_decay"],
            torch.finfo(dtype).eps if smallest is None else smallest,
            least_length,
            group["d"],
        )


def _move(
    weight: Tensor,
    gradient: Tensor,
    row: Tensor | None,
    column: Tensor | None,
    variance: Tensor | None,
    numbers: _Numbers,
) -> None:
    """Step one tensor. row (..., n, 1), column (..., 1, m): factors of the mean square; variance: that of a vector."""
    new, smallest = numbers.new, numbers.smallest
    length = weight.norm(2).mul_(numbers.relative / weight.numel() ** 0.5)
    length = length.clamp_(min=numbers.least_length * numbers.relative)
    if isinstance(numbers.kept, Tensor) or numbers.kept != 1:
        weight.mul_(numbers.kept)
    if row is not None and column is not None:
        row.lerp_(gradient.norm(dim=-1, keepdim=True).square_().div_(gradient.size(-1)), new)
        column.lerp_(gradient.norm(dim=-2, keepdim=True).square_().div_(gradient.size(-2)), new)
        square = (row * column).div_(row.mean(dim=-2, keepdim=True).clamp_(min=smallest))
    else:
        assert variance is not None, "a vector has a variance"
        square = variance.lerp_(gradient * gradient, new).clone()
    update = square.clamp_(min=smallest * smallest).rsqrt_().mul_(gradient)
    # a step that is longer than usual is shortened
    excess = update.norm(2).div_(update.numel() ** 0.5 * numbers.longest).clamp_(min=1.0)
    weight.addcmul_(update, length.div_(excess), value=-1.0)


def _move_stored(
    stored: Tensor,
    gradient: Tensor,
    row: Tensor | None,
    column: Tensor | None,
    variance: Tensor | None,
    numbers: Tensor,
) -> None:
    """Step a weight as it is stored, in float32 or bf16. numbers: the fields of `_Numbers`, in order."""
    weight = stored.float()
    _move(weight, gradient.float(), row, column, variance, _Numbers(*numbers.unbind()))
    if stored.dtype != torch.float32:
        store(stored, weight)
