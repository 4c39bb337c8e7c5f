"""Says what is being compiled while it is, and what was: the main thread can't, since it is the one that compiles."""

from __future__ import annotations

import threading

from backend.compile.telemetry import Telemetry
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CompilingEvent


class CompilePulse:
    """A context in which a thread writes a ``compile`` event whenever another block is being compiled, or none is.

    The event is ``{"compiling": "double block 0 (took 12 s last time)"}``, with None at the end. Each finished graph is
    told too: validation and samples before the first step may take minutes. The page and the terminal show it; nothing
    in training depends on it.
    """

    def __init__(self, telemetry: Telemetry, events: EventWriter, every_s: float = 0.5) -> None:
        self._telemetry = telemetry
        self._events = events
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="compile pulse", daemon=True)

    def __enter__(self) -> CompilePulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        told: str | None = None
        over = False
        while not over:
            over = self._over.wait(self._every_s)
            now = None if over else self._telemetry.compiling
            if now != told:
                told = now
                self._events.write(CompilingEvent(compiling=now))
            for event in self._telemetry.new_events():
                self._events.write(event)
