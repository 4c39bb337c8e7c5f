"""Follows up each validation: keeps the best LoRA, ends a run that gains nothing more, and says when it overfits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.config.sections.validation import ValidationSection
from backend.runs.events import EventWriter
from backend.runs.events.kinds import to_fields
from backend.runs.events.validation import BestEvent, EarlyStopEvent, OverfitEvent
from backend.runs.validation_words import best_words, early_stop_words, overfit_words
from backend.training.best import BestFile
from backend.training.validation_history import Measurement, ValidationHistory

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class FollowUp:
    """What a run concludes from its validations."""

    settings: ValidationSection
    total_steps: int
    history: ValidationHistory
    events: EventWriter
    file: BestFile | None = None
    """Where the best LoRA is kept; None where it is not."""
    early_stop: EarlyStopEvent | None = None
    """What ends the run before its length; None as long as nothing does."""
    best: BestEvent | None = field(default=None)
    """The newest that was written, also before a resume; None before the first validation."""

    def __post_init__(self) -> None:
        lowest = self.history.lowest
        if lowest is not None:
            self.best = self._best_event(lowest)

    def resumed(self, step: int) -> None:
        """A run that was killed while it ended early ends so now: its last validation was the last that was due."""
        measurements = self.history.measurements
        if measurements and measurements[-1].step == step:
            self._early_stop(step)

    def after(self, step: int, losses: Mapping[tuple[str, bool], float]) -> None:
        """All sets were measured after `step`. losses: of each set, by its name and whether it is trained."""
        before, was_overfitting = self.history.lowest, self.history.overfitting is not None
        self.history.add(Measurement.of(step, losses))
        newest, lowest = self.history.measurements[-1], self.history.lowest
        if self.file is not None:
            self.file.offer(newest)
        if lowest is not None and (before is None or lowest.step != before.step):
            self.best = self._best_event(lowest)
            self.events.write(self.best)
            log.info("%s", best_words(self.best))
        self._overfitting(newest, was_overfitting)
        if step < self.total_steps:
            self._early_stop(step)

    def result(self) -> dict[str, Any]:
        """What the run's record keeps of it."""
        kept = {"best": self.best, "early_stop": self.early_stop}
        return {name: None if event is None else to_fields(event) for name, event in kept.items()}

    def _best_event(self, lowest: Measurement) -> BestEvent:
        file = None if self.file is None or self.file.loss != lowest.loss else self.file.name
        return BestEvent(step=lowest.step, loss=lowest.loss, file=file)

    def _overfitting(self, newest: Measurement, before: bool) -> None:
        """Say it once when it begins, and once when it ends."""
        state = self.history.overfitting
        if (state is not None) == before:
            return
        lowest = state.lowest if state is not None else self.history.lowest
        event = OverfitEvent(
            step=newest.step,
            state="ended" if state is None else "begun",
            loss=newest.loss,
            training_loss=newest.training_loss,
            lowest_step=lowest and lowest.step,
            lowest_loss=lowest and lowest.loss,
            lowest_training_loss=lowest and lowest.training_loss,
        )
        self.events.write(event)
        text, remedy = overfit_words(event)
        log.log(logging.INFO if state is None else logging.WARNING, "%s. %s", text, remedy)

    def _early_stop(self, step: int) -> None:
        if self.early_stop is not None:
            # decided already: a resumed run that ends so measures its last step once more
            return
        patience, min_gain = self.settings.early_stop_patience, self.settings.early_stop_min_gain
        waited = self.history.without_gain(min_gain)
        if patience is None or waited < patience:
            return
        self.early_stop = EarlyStopEvent(
            step=step,
            total=self.total_steps,
            validations=waited,
            min_gain=min_gain,
            loss=self.history.measurements[-1].loss,
            lowest_step=self.best and self.best.step,
            lowest_loss=self.best and self.best.loss,
            file=self.best and self.best.file,
        )
        self.events.write(self.early_stop)
        log.info("%s", early_stop_words(self.early_stop))
