"""Rows of steps: one step late, smoothed, and an alarm for what is not finite."""

from __future__ import annotations

import pytest
import torch

from backend.training.position import Position, PositionCounter
from backend.training.step_log import NotFinite, StepLog


class Collected:
    """A step log with the rows that it wrote."""

    def __init__(self, **options: bool) -> None:
        self.counter = PositionCounter(position=Position(), batches_per_epoch=9)
        self.rows: list[tuple[int, dict]] = []
        self.step_log = StepLog(
            write=lambda step, row: self.rows.append((step, dict(row))),
            measure=lambda: {"ram": 5},
            count_loss=self.counter.count_loss,
            **options,
        )

    def step(self, loss: float, norm: float = 1.0) -> None:
        self.counter.count_step()
        self.step_log.end_step(self.counter.position.step, torch.tensor(loss), torch.tensor(norm), lr=0.1)


def test_rows_come_one_step_late_and_settle_brings_the_last() -> None:
    seen = Collected()
    seen.step(4.0)
    assert seen.rows == [] and seen.step_log.last_loss is None
    seen.step(2.0)
    assert seen.rows == [(1, {"ram": 5, "lr": 0.1, "loss": 4.0, "grad_norm": 1.0, "loss_smooth": 4.0})]
    seen.step_log.settle()
    step, row = seen.rows[1]
    assert step == 2 and row["loss"] == 2.0 and 2.0 < row["loss_smooth"] < 4.0
    seen.step_log.settle()
    assert len(seen.rows) == 2 and seen.step_log.last_loss == 2.0


def test_further_numbers_of_the_device_come_with_their_step() -> None:
    seen = Collected()
    for step in (1, 2):
        more = {"layers_scaled": torch.tensor(step), "norm_max": torch.tensor(0.5 * step)}
        seen.step_log.end_step(step, torch.tensor(4.0), torch.tensor(1.0), more, lr=0.1)
    seen.step_log.settle()
    assert [(row["layers_scaled"], row["norm_max"], row["loss"]) for _, row in seen.rows] == [(1, 0.5, 4), (2, 1, 4)]


def test_the_smoothed_loss_continues_where_the_position_has_it() -> None:
    straight, resumed = Collected(), Collected()
    for loss in (4.0, 2.0, 3.0):
        straight.step(loss)
    straight.step_log.settle()
    first = Collected()
    for loss in (4.0, 2.0):
        first.step(loss)
    first.step_log.settle()
    resumed.counter.position = first.counter.position
    resumed.step(3.0)
    resumed.step_log.settle()
    assert resumed.rows[-1] == straight.rows[-1]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_at_its_step(loss: float) -> None:
    seen = Collected()
    seen.step(1.0)
    seen.step(loss)
    with pytest.raises(NotFinite, match="loss became (nan|inf) at step 2"):
        seen.step(1.0)
    assert [step for step, _ in seen.rows] == [1, 2]


def test_an_infinite_gradient_stops_too_unless_the_loss_is_scaled() -> None:
    seen = Collected()
    seen.step(1.0, norm=float("inf"))
    with pytest.raises(NotFinite, match="gradient"):
        seen.step_log.settle()
    searching = Collected(loss_is_scaled=True)
    searching.step(1.0, norm=float("inf"))
    searching.step_log.settle()
