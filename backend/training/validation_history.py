"""Keeps what each validation of a run measured, and computes from it the best step, waiting without gain, overfitting.

All of it is a function of the validations up to a step. A resumed run reads them from its events, and continues as if
it had not stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from backend.runs.events.event import Event
from backend.runs.events.kinds import DoneEvent, ResumedEvent, ValidationEvent

RISE = 0.01
"""Share above the lowest validation loss from which on a loss counts as risen."""

IN_A_ROW = 2
"""Validations in a row that must show overfitting before it is said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One validation of all sets."""

    step: int
    loss: float
    """Mean over the sets that are not trained, each of which counts the same; NaN where one is not finite."""
    training_loss: float | None = None
    """Of the training pictures that are measured too; None where none are."""

    @classmethod
    def of(cls, step: int, losses: Mapping[tuple[str, bool], float]) -> Measurement:
        """The measurement of a step. losses: of each set, by its name and whether it is trained."""
        held_out, trained = (
            [loss for (_, is_trained), loss in sorted(losses.items()) if is_trained is wanted]
            for wanted in (False, True)
        )
        training = _mean(trained)
        return cls(step=step, loss=_mean(held_out), training_loss=training if math.isfinite(training) else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overfitting:
    """The loss of validation pictures has risen from its lowest, while that of training pictures fell."""

    since: Measurement
    """The validation at which it was seen."""
    lowest: Measurement
    """The validation with the lowest loss."""


@dataclass(kw_only=True, slots=True)
class ValidationHistory:
    """The validations of a run, by step."""

    measurements: list[Measurement] = field(default_factory=list)
    fresh_from: int = 0
    """How many measurements came before the run was last finished: waiting for a gain begins again behind them."""

    @classmethod
    def from_events(
        cls, events: Iterable[Event], identities: Mapping[tuple[str, bool], str], until: int
    ) -> ValidationHistory:
        """The history that a run's events hold, up to the step `until`.

        identities: what the events of each set must say to be comparable, by its name and whether it is trained; a step
        at which one that is not trained is missing is left out. Where a step was measured again, the newer one counts.
        """
        history = cls()
        steps: dict[int, dict[tuple[str, bool], float]] = {}
        finished = 0
        for event in events:
            if isinstance(event, ValidationEvent) and event.step <= until:
                if event.identity and event.identity == identities.get((event.set, event.trained)):
                    loss = math.nan if event.loss is None else event.loss
                    steps.setdefault(event.step, {})[event.set, event.trained] = loss
            elif isinstance(event, DoneEvent) and event.step is not None and event.step <= until:
                finished = event.step
            elif isinstance(event, ResumedEvent) and event.step is not None:
                # what was measured behind the state that was resumed from belongs to steps that are done again
                steps = {step: losses for step, losses in steps.items() if step <= event.step}
                finished = finished if finished <= event.step else 0
        held_out = {key for key in identities if not key[1]}
        for step, losses in sorted(steps.items()):
            if held_out <= losses.keys():
                history.add(Measurement.of(step, losses))
                history.fresh_from += step <= finished
        return history

    def add(self, measurement: Measurement) -> None:
        """Take in the newest measurement; one of the same step gives way to it."""
        if self.measurements and self.measurements[-1].step == measurement.step:
            self.measurements[-1] = measurement
        else:
            self.measurements.append(measurement)

    @property
    def lowest(self) -> Measurement | None:
        """The measurement with the lowest loss, the earliest of equals; None where none is finite."""
        finite = [each for each in self.measurements if math.isfinite(each.loss)]
        return min(finite, key=lambda each: each.loss, default=None)

    def without_gain(self, min_gain: float) -> int:
        """Validations in a row, up to the newest, that brought no gain.

        A gain is a loss more than `min_gain` below that of the last gain; the first finite loss is one.
        """
        reference, waited = math.inf, 0
        for number, each in enumerate(self.measurements):
            waited = 0 if number == self.fresh_from else waited
            if each.loss < reference - min_gain:
                reference, waited = each.loss, 0
            else:
                waited += 1
        return 0 if self.fresh_from == len(self.measurements) else waited

    @property
    def overfitting(self) -> Overfitting | None:
        """Whether the newest measurement shows overfitting; None where it does not, or no training picture is measured.

        It begins where `IN_A_ROW` validations have a loss more than `RISE` above the lowest, and training pictures one
        below what they had there. It ends with a new lowest loss, or when training pictures are no longer better.
        """
        return overfitting_of(self.measurements)


def overfitting_of(measurements: Sequence[Measurement]) -> Overfitting | None:
    """`ValidationHistory.overfitting` of these measurements."""
    lowest: Measurement | None = None
    state: Overfitting | None = None
    risen = 0
    for each in measurements:
        if each.training_loss is None or not math.isfinite(each.loss):
            continue
        if lowest is None or each.loss < lowest.loss:
            lowest, state, risen = each, None, 0
        elif lowest.training_loss is not None and each.training_loss >= lowest.training_loss:
            state, risen = None, 0
        else:
            risen = risen + 1 if each.loss > lowest.loss * (1 + RISE) else 0
            if risen >= IN_A_ROW and state is None:
                state = Overfitting(since=each, lowest=lowest)
    return state


def _mean(values: Iterable[float]) -> float:
    """NaN without values, and where one is NaN."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan
