"""Tells how far a preview is, and asks whether it is still wanted."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """What a preview reports to: a terminal, or the events of a worker."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins: controls, text, load, sample, decode, wait (for a checkpoint) or turn (for the GPU).

        total: steps that it has, where that is known.

        Raises as `advance`.
        """

    def advance(self) -> None:
        """One step of the phase begins. Raises `backend.training.sampling.Interrupted` when all is cancelled."""

    def note(self, text: str) -> None:
        """Something that a person should know."""
