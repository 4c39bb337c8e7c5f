"""Holds what a tune tried: a row a candidate, the choice, and those that nothing beats in both time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from backend.plan.finish.pace import Pace
from backend.plan.finish.reckoning import FinishTime

WORTH = 0.02
"""Share of the finish time that a change must save to be taken: two probes of the same settings differ by as much."""

State = Literal["measured", "reused", "does_not_fit", "out_of_memory", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One candidate, and what became of it."""

    number: int
    """From 0, the present settings."""
    name: str
    """What is changed."""
    factor: str
    """Its factor's name; "" for the present settings, "pair" for two at once."""
    values: Mapping[str, Any]
    """All that differs from the present settings, by ``section.name``."""
    state: State
    changes: tuple[str, ...] = ()
    """What is learnt otherwise than with the present settings; empty for nothing."""
    estimated: int | None = None
    """Bytes that it was estimated to need, of the GPU or of RAM; None where the base model can't be read."""
    pace: Pace | None = None
    finish: FinishTime | None = None
    reason: str = ""
    """Why it has no figures."""

    @property
    def ran(self) -> bool:
        """Whether it has figures."""
        return self.finish is not None

    @property
    def seconds(self) -> float:
        """From the start of a run to its end; infinite where it did not run."""
        return float("inf") if self.finish is None else self.finish.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """All that a tune has tried so far."""

    trials: tuple[Trial, ...]
    best: int | None = None
    """Number of the trial to take; None before one ran."""
    probes: int = 0
    """Trainings so far, without results that were known."""
    planned: int = 0
    """Probes in all, at most."""
    left: float | None = None
    """Seconds that the rest takes at most; None before a probe has ended."""
    ended: Literal["", "done", "stopped", "limit", "busy"] = ""
    """"" while it is at work."""
    why: str = ""
    """What ended it early, and what to do."""

    @property
    def chosen(self) -> Trial | None:
        """The trial to take."""
        return None if self.best is None else self.trials[self.best]

    @property
    def present(self) -> Trial:
        """The present settings."""
        return self.trials[0]

    @property
    def gain(self) -> float | None:
        """Share of the present finish time that the choice saves; None where the present settings don't run."""
        if self.chosen is None or not self.present.ran:
            return None
        return 1 - self.chosen.seconds / self.present.seconds


def better(candidate: Trial, best: Trial | None) -> bool:
    """Whether a trial is taken in place of the best so far."""
    return candidate.ran and (best is None or candidate.seconds < best.seconds * (1 - WORTH))


def pareto(trials: Sequence[Trial]) -> list[Trial]:
    """Those than which none both ends sooner and needs less memory, soonest first."""
    front: list[Trial] = []
    known = [trial for trial in trials if trial.pace is not None and trial.pace.peak is not None and trial.ran]
    for trial in sorted(known, key=lambda trial: (trial.seconds, peak_of(trial))):
        if not front or peak_of(trial) < peak_of(front[-1]):
            front.append(trial)
    return front


def peak_of(trial: Trial) -> int:
    """Bytes that a trial used at most; 0 where that is not known."""
    return (trial.pace and trial.pace.peak) or 0


@dataclass(frozen=True, slots=True)
class BlockClass:
    """What compiling a class of blocks costs and saves."""

    name: str
    compiling: float
    """Seconds."""
    speed_up: float | None = None
    """Seconds of a step with this class left out of compiling, by those of a step with all compiled; None where that
    was not tried."""


def block_classes(trials: Sequence[Trial]) -> list[BlockClass]:
    """Each class that the first compiled trial compiled."""
    whole = next((t for t in trials if t.pace is not None and t.pace.classes and not _left_out(t)), None)
    if whole is None or whole.pace is None or not whole.pace.classes:
        return []
    without = {_left_out(trial): trial for trial in trials if trial.ran and _left_out(trial)}
    return [
        BlockClass(name, seconds, _speed_up(without.get(name), trials)) for name, seconds in whole.pace.classes.items()
    ]


def _speed_up(trial: Trial | None, trials: Sequence[Trial]) -> float | None:
    """Seconds of a step of a trial that leaves a class out, by those of the trial that compiles it too."""
    beside = None if trial is None else _compiled_alike(trial, trials)
    if trial is None or beside is None or trial.finish is None or beside.finish is None:
        return None
    return trial.finish.step / beside.finish.step


def _left_out(trial: Trial) -> str:
    """The class that a trial alone leaves out of compiling; "" for none."""
    rows = trial.values.get("compile.compile_blocks") or ()
    return next((row["blocks"] for row in rows if not row["compile"]), "")


def _compiled_alike(trial: Trial, trials: Sequence[Trial]) -> Trial | None:
    """The trial that differs from `trial` only in compiling all."""
    values = {path: value for path, value in trial.values.items() if path != "compile.compile_blocks"}
    return next((other for other in trials if other.ran and dict(other.values) == values), None)
