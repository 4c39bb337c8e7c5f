"""Computes from a trainer's events and step rows what its time went to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from backend.runs.events.kinds import Event, PhaseEvent

_LEAST_ROWS = 5
_LEAST_FILLING_S = 2.0
"""Filling caches for less than this counts as having found them filled."""

Row = Mapping[str, Any]
"""A step's row of metrics.sqlite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One trainer process that has ended: when it began and ended (unix seconds), its events and step rows."""

    began: float
    ended: float
    events: list[Event]
    rows: list[Row]

    def phases(self) -> dict[str, float]:
        """Seconds that each phase took; "start" is what comes before the first."""
        return phase_seconds(self.events, self.began, self.ended)

    def filled(self) -> bool:
        """Whether it spent time on filling caches, which a process after it need not do again."""
        return spent_filling(self.events, self.rows, self.began, self.ended)


def phase_seconds(events: Sequence[Event], began: float, ended: float) -> dict[str, float]:
    """Seconds that each phase took between two moments in unix seconds; "start" is what comes before the first."""
    seconds: dict[str, float] = {}
    name, since = "start", began
    for event in events:
        if isinstance(event, PhaseEvent):
            seconds[name] = seconds.get(name, 0.0) + event.t - since
            name, since = event.phase, event.t
    seconds[name] = seconds.get(name, 0.0) + ended - since
    return seconds


def spent_filling(events: Sequence[Event], rows: Sequence[Row], began: float, ended: float) -> bool:
    """Whether a process that began and ended then (unix seconds) spent time on filling caches, compiled blocks too."""
    phases = phase_seconds(events, began, ended)
    cached = sum(phases.get(name, 0.0) for name in ("cache_latents", "cache_masks", "cache_text"))
    return cached > _LEAST_FILLING_S or any((row.get("cache_misses") or 0) > 0 for row in rows[-1:])


def phases_until(events: Sequence[Event], until: float) -> dict[str, float]:
    """Seconds of the phases that ended before `until`, in unix seconds."""
    early = [event for event in events if isinstance(event, PhaseEvent) and event.t <= until]
    seconds: dict[str, float] = {}
    for event, following in pairwise(early):
        seconds[event.phase] = seconds.get(event.phase, 0.0) + following.t - event.t
    return seconds


def warm_from(rows: Sequence[Row]) -> int:
    """Index of the first row behind the last compile or recording; the middle where too few rows are behind it."""
    settled, before = 0, 0.0
    for index, row in enumerate(rows):
        seconds = row.get("compile_seconds") or 0.0
        if seconds > before:
            settled, before = index + 1, seconds
    # the first step loads kernels even where nothing is compiled
    settled = max(settled, 1)
    return settled if len(rows) - settled >= _LEAST_ROWS else len(rows) // 2
