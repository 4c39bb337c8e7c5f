"""Reports the progress of phases that are not training: scanning, encoding, loading, sampling."""

from __future__ import annotations

import time
from collections import deque

from backend.runs.events import EventWriter
from backend.runs.events.kinds import PhaseEvent

# The rate is that of the last half minute: files found in a cache go by much faster than those to be encoded.
_WINDOW_S = 30.0


class PhaseProgress:
    """Writes ``phase`` events for one phase, at most one every ``every_s`` seconds, with the time still needed.

    As a context manager it writes the beginning and, when no error passed through, the end::

        with PhaseProgress(events, "cache_latents", total=400) as progress:
            for item in items:
                ...
                progress.advance()
    """

    def __init__(self, events: EventWriter, phase: str, total: int | None = None, every_s: float = 1.0) -> None:
        self._events = events
        self._phase = phase
        self._total = total
        self._every_s = every_s
        self._done = 0
        self._written = -1
        self._written_at = float("-inf")
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def __enter__(self) -> PhaseProgress:
        self._write()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._written != self._done:
            self._write()

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self.set(self._done + count)

    def set(self, done: int, total: int | None = None) -> None:
        """So many are done in all; fits callbacks of the form ``progress(done, total)``."""
        now = time.monotonic()
        if self._done == 0 < done:
            # The first one bears what is done once, a compile above all: the rate is that of those behind it.
            self._marks = deque([(now, done)])
        self._done = done
        self._total = total if total is not None else self._total
        if now - self._written_at >= self._every_s:
            self._marks.append((now, done))
            while len(self._marks) > 2 and self._marks[0][0] < now - _WINDOW_S:
                self._marks.popleft()
            self._write()

    def eta_s(self) -> float | None:
        """Seconds still needed at the present rate; None while it is not known."""
        (begun, first), now = self._marks[0], time.monotonic()
        if self._total is None or self._done <= first or now <= begun:
            return None
        return (self._total - self._done) * (now - begun) / (self._done - first)

    def _write(self) -> None:
        eta = self.eta_s()
        self._written, self._written_at = self._done, time.monotonic()
        self._events.write(
            PhaseEvent(
                phase=self._phase, done=self._done, total=self._total, eta_s=None if eta is None else round(eta, 1)
            )
        )
