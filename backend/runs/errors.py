"""The errors of this package that people read: what is wrong, and what to do about it."""

from __future__ import annotations

import errno


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


class WriteFailed(OSError):
    """A file could not be written whole; what was there before is still there.

    Attributes:
        text: what is wrong, in one sentence.
        remedy: what to do about it.
    """

    def __init__(self, text: str, remedy: str, number: int | None = None) -> None:
        super().__init__(f"{text} {remedy}")
        self.text = text
        self.remedy = remedy
        self.errno = number


class DiskFull(WriteFailed):
    """The disk, or this user's share of it, has no room for the file."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text, remedy, errno.ENOSPC)
