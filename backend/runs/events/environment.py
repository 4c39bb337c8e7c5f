"""Defines the event about what a run is trained with: programs, system and device."""

from __future__ import annotations

from dataclasses import dataclass

from backend.runs.events.event import Event, Json


@dataclass(slots=True, kw_only=True, frozen=True)
class EnvironmentEvent(Event):
    """What this process trains with."""

    kind = "environment"
    system: str = ""
    """Name, release and machine type; no name of a computer or person."""
    python: str = ""
    device: str = ""
    """The GPU's name, or the processor's type."""
    cuda: str | None = None
    """The version that torch was built for."""
    packages: Json | None = None
    """Version of each package that takes part, by name."""
