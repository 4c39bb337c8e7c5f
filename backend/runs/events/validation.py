"""Defines the events of what a run concludes from its validation losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backend.runs.events.event import Event


@dataclass(slots=True, kw_only=True, frozen=True)
class BestEvent(Event):
    """A validation loss is lower than all before; of several sets, their mean."""

    kind = "best"
    step: int
    loss: float
    file: str | None = None
    """Path in the run's folder of the LoRA file that holds it; None where none is kept."""


@dataclass(slots=True, kw_only=True, frozen=True)
class EarlyStopEvent(Event):
    """The run ends before its whole length: validations brought no gain any more."""

    kind = "early_stop"
    step: int
    total: int | None = None
    """Steps of the whole run."""
    validations: int | None = None
    """In a row without gain."""
    min_gain: float | None = None
    loss: float | None = None
    lowest_step: int | None = None
    lowest_loss: float | None = None
    file: str | None = None
    """Path in the run's folder of the LoRA file of the lowest loss; None where none is kept."""


@dataclass(slots=True, kw_only=True, frozen=True)
class OverfitEvent(Event):
    """The loss of validation pictures rises while that of training pictures falls, or does so no longer."""

    kind = "overfit"
    step: int
    state: Literal["begun", "ended"] | None = None
    loss: float | None = None
    training_loss: float | None = None
    lowest_step: int | None = None
    """The step of the lowest validation loss, with both losses there."""
    lowest_loss: float | None = None
    lowest_training_loss: float | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class AverageEvent(Event):
    """The mean of several LoRA files was written."""

    kind = "average"
    step: int
    file: str
    """Path in the run's folder."""
    steps: list[int] | None = None
    """Of the files that it is the mean of."""
    error: float | None = None
    """Part of the mean's change that its rank can't hold, 0 to 1; None where factors themselves were averaged."""
    loss: float | None = None
    """Its validation loss; None where nothing was measured."""
    final_loss: float | None = None
    """Validation loss of the finished LoRA."""
    lowest_step: int | None = None
    lowest_loss: float | None = None
