"""Sends a step's row to the run's metrics, and to TensorBoard files where they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter

log = logging.getLogger(__name__)

Row = Mapping[str, float | int | None]

_SHOWN = ("loss", "loss_smooth", "lr", "grad_norm", "s_per_step", "vram_allocated", "graphs", "recompiles",
          "layers_scaled", "norm_mean", "norm_max")  # fmt: skip


def row_writer(run: Run, metrics: MetricsWriter, tensorboard: bool, stack: ExitStack) -> Callable[[int, Row], None]:
    """A function that takes a step and its row. stack: closes the TensorBoard file at the end of the run."""
    if not tensorboard:
        return lambda step, row: metrics.add(step, **row)
    from torch.utils.tensorboard import SummaryWriter

    board = _Board(SummaryWriter(run.path / "tensorboard"))
    stack.callback(board.close)

    def write(step: int, row: Row) -> None:
        metrics.add(step, **row)
        board.add(step, {name: value for name in _SHOWN if (value := row.get(name)) is not None})

    return write


class _Board:
    """TensorBoard's writer; what it fails of, a full disk mostly, costs its files and never the training."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, step: int, values: Row) -> None:
        try:
            for name, value in values.items() if self._writer is not None else ():
                self._writer.add_scalar(name, value, step)
        except Exception as error:  # noqa: BLE001 - it passes on whatever its writing thread died of
            self._give_up(error)

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        log.warning("No more TensorBoard files are written for this run: %s. Training continues.", error)
