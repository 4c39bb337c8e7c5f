"""Stands where the first process saves, measures and draws: in the others nothing is done there."""

from __future__ import annotations

from collections.abc import Sequence


class Following:
    """The work between steps, and the saver, of a process that only trains."""

    ends_early = False

    def at_start(self) -> None:
        """The first process does what is set for the time before the first step."""

    def after_step(self, ended_epochs: Sequence[int]) -> None:
        """As above, after a step."""

    def at_end(self) -> None:
        """As above, at the end."""

    def save_final(self) -> None:
        """The first process writes the finished file."""

    def save_stopped(self) -> None:
        """The first process writes file and state before a stop."""
