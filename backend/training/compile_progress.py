"""Says what is being compiled while it is, and what was: the main thread can't, since it is the one that compiles."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from backend.compile.telemetry import Telemetry
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CompilingEvent


@dataclass(kw_only=True, slots=True)
class CompileProgress:
    """A context in which a thread writes a ``compile`` event whenever another block is being compiled, or none is.

    The event is ``{"compiling": "double block 0 (took 12 s last time)"}``, with None at the end. Each finished graph
    is written too: validation and samples before the first step may take minutes. The page and the terminal show it;
    nothing in training depends on it.
    """

    telemetry: Telemetry
    events: EventWriter
    every_s: float = 0.5
    """Seconds between two looks."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> CompileProgress:
        self._thread = threading.Thread(target=self._follow, name="compile progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        written: str | None = None
        over = False
        while not over:
            over = self._over.wait(self.every_s)
            compiling = None if over else self.telemetry.compiling
            if compiling != written:
                written = compiling
                self.events.write(CompilingEvent(compiling=compiling))
            for event in self.telemetry.new_events():
                self.events.write(event)
