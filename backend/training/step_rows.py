"""Where a step's row goes: the run's metrics, and TensorBoard files where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter

Row = Mapping[str, float | int | None]

_SHOWN = ("loss", "loss_smooth", "lr", "grad_norm", "s_per_step", "vram_allocated", "graphs", "recompiles",
          "layers_scaled", "norm_mean", "norm_max")  # fmt: skip


def row_writer(run: Run, metrics: MetricsWriter, tensorboard: bool, stack: ExitStack) -> Callable[[int, Row], None]:
    """A function that takes a step and its row. stack: closes the TensorBoard file at the end of the run."""
    if not tensorboard:
        return lambda step, row: metrics.add(step, **row)
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(run.path / "tensorboard")
    stack.callback(board.close)

    def write(step: int, row: Row) -> None:
        metrics.add(step, **row)
        for name in _SHOWN:
            value = row.get(name)
            if value is not None:
                board.add_scalar(name, value, step)

    return write
