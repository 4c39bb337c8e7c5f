"""Reads a step's numbers back one step late, smooths and checks them, and writes them as a row of the run's metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Row = Mapping[str, float | int | None]

WriteRow = Callable[[int, Row], None]
"""Takes a step and its row, with columns as in ``backend.runs.metrics.COLUMNS``."""

Measure = float | int | Callable[[], float] | None
"""A column's value, or what gives it once the device has done with the step."""


class NotFinite(Exception):
    """Loss or gradients became NaN or infinite at `step`; the weights after that step are lost."""

    def __init__(self, step: int, what: str, value: float) -> None:
        super().__init__(f"The {what} became {value} at step {step}.")
        self.step = step
        self.what = what


@dataclass(kw_only=True, slots=True)
class _Pending:
    """Numbers of a step on their way from the device."""

    step: int
    row: dict[str, Measure]
    names: tuple[str, ...]
    host: Tensor
    copied: torch.cuda.Event | None
    """Waits for the numbers and for nothing that was queued later."""

    def values(self) -> dict[str, float]:
        if self.copied is not None:
            self.copied.synchronize()
        return dict(zip(self.names, self.host.tolist(), strict=True))


@dataclass(kw_only=True, slots=True)
class StepLog:
    """Collects each step's numbers and writes a whole row once the device has computed them."""

    write: WriteRow
    measure: Callable[[], Mapping[str, Measure]]
    """Columns that only the host knows (memory, graphs), asked once a row, or functions that give them once the step is
    done. A step in which something was compiled gets no s_per_step."""
    count_loss: Callable[[float], float]
    """Adds a step's loss to the smoothed one, which it returns."""
    loss_is_scaled: bool = False
    """True under fp16 loss scaling, where an infinite gradient is part of the search for the scale and its step is
    skipped."""
    last_loss: float | None = None
    """Loss of the newest step that was written, where it is finite."""
    _pending: _Pending | None = None
    _compile_seconds: float = 0.0

    def end_step(
        self, step: int, loss: Tensor, grad_norm: Tensor, more: Mapping[str, Tensor] | None = None, **columns: Measure
    ) -> None:
        """Take the numbers of `step` without waiting; settle the step before.

        loss, grad_norm, more (further columns by name): shape (), on the device. Raises NotFinite for the step before.
        """
        numbers = {"loss": loss, "grad_norm": grad_norm, **(more or {})}
        stacked = torch.stack([number.detach().float() for number in numbers.values()])
        copied = None
        if stacked.is_cuda:
            host = torch.empty(len(numbers), pin_memory=True)
            host.copy_(stacked, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        else:
            host = stacked
        # host-side numbers belong to this step: asked one step later, a compile would be booked to the wrong one
        row: dict[str, Any] = {**self.measure(), **columns}
        compiled = row.get("compile_seconds") or 0.0
        if compiled > self._compile_seconds:
            row["s_per_step"], self._compile_seconds = None, compiled
        before = self._pending
        self._pending = _Pending(step=step, row=row, names=tuple(numbers), host=host, copied=copied)
        self._settle(before)

    def settle(self) -> None:
        """Wait for the newest step's numbers, check and write them: before a save, at the end. May raise NotFinite."""
        pending, self._pending = self._pending, None
        self._settle(pending)

    def _settle(self, pending: _Pending | None) -> None:
        if pending is None:
            return
        numbers = pending.values()
        loss, norm = numbers["loss"], numbers["grad_norm"]
        row = {name: value() if callable(value) else value for name, value in pending.row.items()} | numbers
        if math.isfinite(loss):
            row["loss_smooth"] = self.count_loss(loss)
            self.last_loss = loss
        self.write(pending.step, row)
        if not math.isfinite(loss):
            raise NotFinite(pending.step, "loss", loss)
        if not math.isfinite(norm) and not self.loss_is_scaled:
            raise NotFinite(pending.step, "gradient", norm)
