"""Counts how far a run is: batches, steps, epochs, seconds and the smoothed loss.

The trainer alone counts, through `PositionCounter`. Every other part receives a function that gives the present
`Position`, which nothing can change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

SMOOTHING = 0.98
"""Share of the smoothed loss that stays at each step, about the mean of the last fifty; corrected for its start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a run is. A resume state holds these fields by their names."""

    step: int = 0
    """Optimizer steps done."""
    micro: int = 0
    """Batches of the step in progress, of each process, whose gradients are summed already."""
    epoch: int = 0
    """Epoch of the next batch to read, from 0."""
    batch: int = 0
    """Number of that batch in its epoch, from 0."""
    step_epoch: int = 0
    """The epoch when `step` was counted."""
    loss_sum: float = 0.0
    """Loss of those `micro` batches, each divided by the accumulation's length."""
    smooth: float = 0.0
    """The smoothed loss, not yet divided by its weight."""
    smooth_weight: float = 0.0
    """Weight of the smoothed loss; near 1 after a few hundred steps."""
    seconds: float = 0.0
    """Time spent training so far, over all starts of the run."""

    @property
    def is_start(self) -> bool:
        """True before the first batch."""
        return not self.step and not self.micro

    @property
    def loss_smooth(self) -> float | None:
        """The smoothed loss, corrected for its start; None before the first step."""
        return self.smooth / self.smooth_weight if self.smooth_weight else None

    def after_batches(self, count: int, batches_per_epoch: int) -> Position:
        """The position behind `count` batches from this one on."""
        epochs, batch = divmod(self.batch + count, batches_per_epoch)
        return replace(self, epoch=self.epoch + epochs, batch=batch)

    def without_step(self, batches_per_epoch: int) -> Position:
        """The position before the step in progress, of one process, whose batches are then trained again."""
        epochs, batch = divmod(self.batch - self.micro, batches_per_epoch)
        return replace(self, epoch=self.epoch + epochs, batch=batch, micro=0, loss_sum=0.0)


CurrentPosition = Callable[[], Position]
"""Gives the run's position at the time of the call."""

_COUNTED_ON = ("smooth", "smooth_weight", "seconds")
"""What a run does not give back with a step that is given up."""


@dataclass(kw_only=True, slots=True)
class PositionCounter:
    """The one place where a run's position changes."""

    position: Position
    """The present position."""
    batches_per_epoch: int
    """Batches of every epoch."""
    processes: int = 1
    """Each trains a batch while the others train theirs, in the order of the epoch."""
    whole: Position | None = None
    """The position after the last whole step; None where a resume began within a step that is not whole yet."""
    _mark: float = field(default_factory=time.monotonic)

    def current(self) -> Position:
        """The present position, for the parts that only read it."""
        return self.position

    def start_clock(self) -> None:
        """Count time from now on: what came before is no training."""
        self._mark = time.monotonic()

    def begin_batch(self) -> None:
        """Each process is about to read a batch: between two steps, the present position is that of a whole one."""
        if not self.position.micro:
            self.whole = self.position

    def finish_step(self) -> None:
        """The weights have moved: whatever fails before `count_step`, the step is whole."""
        after = self._after_round()
        self.whole = replace(after, step=after.step + 1, micro=0, loss_sum=0.0)

    def count_batch(self) -> None:
        """A batch is done in each process."""
        after = self._after_round()
        self.position = replace(after, micro=after.micro + 1)

    def _after_round(self) -> Position:
        return self.position.after_batches(self.processes, self.batches_per_epoch)

    def count_step(self) -> None:
        """A step is done, and so is the time that it took."""
        self.position = replace(self.position, step=self.position.step + 1, micro=0, loss_sum=0.0)
        self.count_time()
        self.whole = self.position

    def count_epochs(self) -> range:
        """Numbers, from 1, of the epochs that ended since the last call. Called once after each step."""
        ended = range(self.position.step_epoch + 1, self.position.epoch + 1)
        self.position = self.whole = replace(self.position, step_epoch=self.position.epoch)
        return ended

    def count_loss(self, loss: float) -> float:
        """Add a step's finite loss to the smoothed one; return that."""
        smooth = SMOOTHING * self.position.smooth + (1 - SMOOTHING) * loss
        weight = SMOOTHING * self.position.smooth_weight + (1 - SMOOTHING)
        self.position = replace(self.position, smooth=smooth, smooth_weight=weight)
        return smooth / weight

    def count_time(self) -> None:
        """Add the seconds since the last call."""
        now = time.monotonic()
        self.position = replace(self.position, seconds=self.position.seconds + now - self._mark)
        self._mark = now

    def keep_loss(self, loss_sum: float) -> None:
        """Keep the summed loss of a step in progress, for a state that is saved within it."""
        self.position = replace(self.position, loss_sum=loss_sum)

    def return_to_whole(self) -> None:
        """Give up the step in progress. The smoothed loss and the time are kept."""
        assert self.whole is not None
        kept = {name: getattr(self.position, name) for name in _COUNTED_ON}
        self.position = replace(self.whole, **kept)


def position_of(saved: dict[str, int | float]) -> Position:
    """The position in a state's file; fields of other versions are left out. TypeError for what is no position."""
    known = {each.name for each in fields(Position)}
    return Position(**{name: value for name, value in saved.items() if name in known})  # type: ignore[arg-type]
