"""Holds where a run's records go, and what a person asks of it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.training.ranks.group import Ranks
from backend.training.requests import Requests


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """Where a run's records go, and what a person asks of it."""

    run: Run
    events: EventWriter
    requests: Requests
    stack: ExitStack
    """Closes all that has to be closed at the run's end."""
    started: float
    """Unix seconds."""
    ranks: Ranks = field(default_factory=Ranks)
    """The processes that train together; by default this one by itself."""
