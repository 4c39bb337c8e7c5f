"""Defines the errors of runs that people read: what is wrong, and what to do about it."""

from __future__ import annotations


class RunError(Exception):
    """A run can't be made, found, started or stopped.

    Attributes:
        text: what is wrong, in one sentence.
        remedy: what to do about it.
    """

    def __init__(self, text: str, remedy: str = "") -> None:
        self.text = text
        self.remedy = remedy
        super().__init__(f"{text} {remedy}".strip())


class RunNotFound(RunError):
    """No run, or more than one, goes by the name that was given."""


class RunBusy(RunError):
    """A live process already works on this run folder."""
