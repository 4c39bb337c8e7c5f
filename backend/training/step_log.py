"""What a step leaves behind: loss and gradient norm, read back one step late, smoothed, checked, written as a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.training.checkpoint import Position

SMOOTHING = 0.98
"""Share of the smoothed loss that stays at each step, about the mean of the last fifty; corrected for its start."""


class NotFinite(Exception):
    """Loss or gradients became NaN or infinite at `step`; the weights after that step are lost."""

    def __init__(self, step: int, what: str, value: float) -> None:
        super().__init__(f"The {what} became {value} at step {step}.")
        self.step = step
        self.what = what


Measure = float | int | Callable[[], float] | None
"""A column's value, or what gives it once the device has done with the step."""


@dataclass
class _Late:
    """Numbers on their way from the device; `copied` waits for them and for nothing that was queued later."""

    step: int
    row: dict[str, Measure]
    names: tuple[str, ...]
    host: Tensor
    copied: torch.cuda.Event | None

    def values(self) -> dict[str, float]:
        if self.copied is not None:
            self.copied.synchronize()
        return dict(zip(self.names, self.host.tolist(), strict=True))


class StepRecords:
    """Collects each step's numbers and hands a whole row to `write` once the device has computed them.

    write: called with the step and its columns (as ``backend.runs.metrics.COLUMNS``). measures: adds the columns that
    only the host knows (memory, graphs), asked once a row, or functions that tell once the step is done; a step in
    which something was compiled gets no s_per_step. scaled: True under fp16 loss scaling, where an infinite gradient is
    part of the search for the scale and its step is skipped.
    """

    def __init__(
        self,
        position: Position,
        write: Callable[[int, Mapping[str, float | int | None]], None],
        measures: Callable[[], Mapping[str, Measure]],
        scaled: bool = False,
    ) -> None:
        self._position = position
        self._write = write
        self._measures = measures
        self._scaled = scaled
        self._late: _Late | None = None
        self._compile_seconds = 0.0
        self.last_loss: float | None = None

    def end_step(
        self, loss: Tensor, grad_norm: Tensor, more: Mapping[str, Tensor] | None = None, **row: float | int | None
    ) -> None:
        """Take the numbers of the step that `position` has just counted without waiting; settle the step before.

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
        told: dict[str, Any] = {**self._measures(), **row}
        compiled = told.get("compile_seconds") or 0.0
        if compiled > self._compile_seconds:
            told["s_per_step"], self._compile_seconds = None, compiled
        late, self._late = self._late, _Late(self._position.step, told, tuple(numbers), host, copied)
        self._settle(late)

    def settle(self) -> None:
        """Wait for the newest step's numbers, check and write them: before a save, at the end. May raise NotFinite."""
        late, self._late = self._late, None
        self._settle(late)

    def _settle(self, late: _Late | None) -> None:
        if late is None:
            return
        numbers = late.values()
        loss, norm = numbers["loss"], numbers["grad_norm"]
        position = self._position
        row = {name: value() if callable(value) else value for name, value in late.row.items()} | numbers
        if math.isfinite(loss):
            position.smooth = SMOOTHING * position.smooth + (1 - SMOOTHING) * loss
            position.smooth_weight = SMOOTHING * position.smooth_weight + (1 - SMOOTHING)
            row["loss_smooth"] = position.smooth / position.smooth_weight
            self.last_loss = loss
        self._write(late.step, row)
        if not math.isfinite(loss):
            raise NotFinite(late.step, "loss", loss)
        if not math.isfinite(norm) and not self._scaled:
            raise NotFinite(late.step, "gradient", norm)
