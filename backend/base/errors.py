"""Defines the exceptions for a person: what is wrong, and the fix; neither needs a traceback."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from backend.base.problems import Problem


class Refused(ValueError):
    """Settings or files that the person has to fix before this can continue."""

    def __init__(self, text: str, remedy: str, path: str | None = None) -> None:
        self.problems = [Problem(path, None, text, remedy)]
        super().__init__(self.problems[0].sentence())

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> Refused:
        """One refusal that tells every problem at once. AssertionError when there is none."""
        listed = list(problems)
        assert listed, "a refusal needs a problem"
        refused = cls(listed[0].text, listed[0].remedy, listed[0].path)
        refused.problems = listed
        refused.args = ("\n".join(problem.sentence() for problem in listed),)
        return refused

    @classmethod
    def from_error(cls, error: ValueError, path: str | None = None) -> Refused:
        """A refusal out of a helper's ValueError: its first sentence is the text, the others the remedy."""
        text, _, remedy = str(error).partition(". ")
        return cls(text, remedy, path)

    @property
    def text(self) -> str:
        """What is wrong, all of it, without the remedies."""
        return " ".join(problem.text for problem in self.problems)

    @property
    def remedy(self) -> str:
        """What to do about it, each remedy once."""
        return " ".join(dict.fromkeys(problem.remedy for problem in self.problems if problem.remedy))


class Failed(RuntimeError):
    """A run that was fine at its start and can't continue; `text` says what happened and what was kept."""

    def __init__(self, text: str, remedy: str) -> None:
        self.text = text
        self.remedy = remedy
        super().__init__(f"{text} {remedy}")


_NO_ACCESS = {errno.EROFS: "read_only", errno.EACCES: "not_writable", errno.EPERM: "not_writable"}


class WriteFailed(OSError):
    """A file could not be written whole; what was there before is still there.

    Attributes:
        text: what is wrong, in one sentence.
        remedy: what to do about it.
    """

    @property
    def kind(self) -> str:
        """As `backend.runs.diagnose.Diagnosis.kind`."""
        return _NO_ACCESS.get(self.errno or 0, "said")

    def __init__(self, text: str, remedy: str, number: int | None = None) -> None:
        super().__init__(f"{text} {remedy}")
        self.text = text
        self.remedy = remedy
        self.errno = number


class DiskFull(WriteFailed):
    """The disk, or this user's share of it, has no room for the file."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text, remedy, errno.ENOSPC)
