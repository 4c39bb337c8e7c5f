"""Rows of steps: one step late, smoothed, and an alarm for what is not finite."""

from __future__ import annotations

import pytest
import torch

from backend.training.checkpoint import Position
from backend.training.step_log import NotFinite, StepRecords


class Collected:
    """Records with the rows they wrote."""

    def __init__(self, **options: bool) -> None:
        self.position = Position()
        self.rows: list[tuple[int, dict]] = []
        self.records = StepRecords(
            self.position, lambda step, row: self.rows.append((step, dict(row))), lambda: {"ram": 5}, **options
        )

    def step(self, loss: float, norm: float = 1.0) -> None:
        self.position.step += 1
        self.records.end_step(torch.tensor(loss), torch.tensor(norm), lr=0.1)


def test_rows_come_one_step_late_and_settle_brings_the_last() -> None:
    seen = Collected()
    seen.step(4.0)
    assert seen.rows == [] and seen.records.last_loss is None
    seen.step(2.0)
    assert seen.rows == [(1, {"ram": 5, "lr": 0.1, "loss": 4.0, "grad_norm": 1.0, "loss_smooth": 4.0})]
    seen.records.settle()
    step, row = seen.rows[1]
    assert step == 2 and row["loss"] == 2.0 and 2.0 < row["loss_smooth"] < 4.0
    seen.records.settle()
    assert len(seen.rows) == 2 and seen.records.last_loss == 2.0


def test_further_numbers_of_the_device_come_with_their_step() -> None:
    seen = Collected()
    for step in (1, 2):
        seen.position.step = step
        more = {"layers_scaled": torch.tensor(step), "norm_max": torch.tensor(0.5 * step)}
        seen.records.end_step(torch.tensor(4.0), torch.tensor(1.0), more, lr=0.1)
    seen.records.settle()
    assert [(row["layers_scaled"], row["norm_max"], row["loss"]) for _, row in seen.rows] == [(1, 0.5, 4), (2, 1, 4)]


def test_the_smoothed_loss_goes_on_where_the_position_has_it() -> None:
    straight, resumed = Collected(), Collected()
    for loss in (4.0, 2.0, 3.0):
        straight.step(loss)
    straight.records.settle()
    first = Collected()
    for loss in (4.0, 2.0):
        first.step(loss)
    first.records.settle()
    resumed.position.__dict__.update(first.position.__dict__)
    resumed.step(3.0)
    resumed.records.settle()
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
        seen.records.settle()
    searching = Collected(scaled=True)
    searching.step(1.0, norm=float("inf"))
    searching.records.settle()
