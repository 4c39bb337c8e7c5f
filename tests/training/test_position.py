"""How far a run is: counted in one place, read everywhere else."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

import backend.latents
import backend.objectives
import backend.training
from backend.training.position import Position, PositionCounter


def counter(**fields: int | float) -> PositionCounter:
    return PositionCounter(position=Position(**fields), batches_per_epoch=3)


def test_batches_steps_and_epochs_are_counted_over_the_borders_of_epochs() -> None:
    """Two batches a step, three an epoch: the second step ends the first epoch."""
    at, ended = counter(), []
    for _ in range(3):
        for _ in range(2):
            at.begin_batch()
            at.count_batch()
        at.count_step()
        ended.append(list(at.count_epochs()))
    assert ended == [[], [1], [2]]
    assert (at.position.step, at.position.micro, at.position.epoch, at.position.batch) == (3, 0, 2, 0)
    assert at.position.step_epoch == 2 and at.position.seconds > 0


@pytest.mark.parametrize(("processes", "accumulation"), [(2, 1), (3, 2), (7, 1), (4, 3)])
def test_several_processes_read_each_batch_once_in_order(processes: int, accumulation: int) -> None:
    """Three batches an epoch, so that a round may hold the end of one, or whole ones."""
    at = PositionCounter(position=Position(), batches_per_epoch=3, processes=processes)
    read, epochs = [], []
    for _ in range(6):
        for _ in range(accumulation):
            at.begin_batch()
            read += [at.position.after_batches(rank, 3) for rank in range(processes)]
            at.count_batch()
        at.finish_step()
        at.count_step()
        epochs += at.count_epochs()
    count = 6 * accumulation * processes
    assert [(place.epoch, place.batch) for place in read] == [divmod(number, 3) for number in range(count)]
    assert epochs == list(range(1, count // 3 + 1)) and at.position.step == 6
    back = Position(step=5, epoch=2, batch=1, micro=5, loss_sum=1.0).without_step(3)
    assert back == Position(step=5, epoch=0, batch=2)


def test_a_step_that_is_given_up_takes_neither_time_nor_smoothed_loss_with_it() -> None:
    at = counter(step=4, epoch=1, batch=1)
    at.begin_batch()
    at.count_batch()
    at.begin_batch()
    at.count_loss(2.0)
    at.count_time()
    at.keep_loss(0.5)
    before = at.position
    at.return_to_whole()
    kept = {"smooth": before.smooth, "smooth_weight": before.smooth_weight, "seconds": before.seconds}
    assert at.position == Position(step=4, epoch=1, batch=1, **kept) and before.loss_smooth == pytest.approx(2.0)


def test_a_step_is_whole_once_the_weights_have_moved() -> None:
    at = counter(step=1, micro=1, batch=2, loss_sum=0.3)
    at.begin_batch()
    assert at.whole is None
    at.finish_step()
    assert at.whole == Position(step=2, epoch=1)


def test_readers_can_not_move_it() -> None:
    at = counter()
    with pytest.raises(dataclasses.FrozenInstanceError):
        at.current().step = 5  # type: ignore[misc]


def test_parts_of_a_run_are_built_by_keyword_and_hold_nothing_undeclared() -> None:
    """A value type of up to three fields may be built in order."""
    wrong = []
    for package in (backend.training, backend.latents, backend.objectives):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            loaded = importlib.import_module(module.name)
            for name, cls in inspect.getmembers(loaded, inspect.isclass):
                if cls.__module__ != module.name or not dataclasses.is_dataclass(cls):
                    continue
                fields = dataclasses.fields(cls)
                by_keyword = len(fields) <= 3 or all(field.kw_only for field in fields if field.init)
                if not by_keyword or "__slots__" not in vars(cls):
                    wrong.append(f"{module.name}.{name}")
    assert wrong == []
