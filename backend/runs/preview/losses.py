"""Reads the validation losses of a run by step, for the rows of a preview."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from backend.runs.events import read_events
from backend.runs.events.kinds import ValidationEvent
from backend.runs.folder import Run


def losses_of(run: Run) -> dict[int | None, float]:
    """The validation loss of each step that was measured: the mean of all sets of pictures that are not trained."""
    try:
        return _losses(run.events_path, run.events_path.stat().st_size)
    except OSError:
        return {}


@lru_cache(maxsize=16)
def _losses(events: Path, size: int) -> dict[int | None, float]:
    """The losses in a file of events, which only ever grows: its size says whether there is more."""
    losses: dict[int | None, list[float]] = {}
    for event in read_events(events)[0]:
        if isinstance(event, ValidationEvent) and event.loss is not None and not event.trained:
            losses.setdefault(event.step, []).append(event.loss)
    return {step: sum(each) / len(each) for step, each in losses.items()}
