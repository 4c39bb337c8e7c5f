"""Defines the note on each name of the other program: imported, changed, or left out and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Fate = Literal["taken", "near", "default", "not offered", "not needed", "unknown", "off"]


@dataclass(frozen=True)
class Note:
    """What happened to one name."""

    key: str
    fate: Fate
    why: str = ""
    line: int | None = None
    """In its file, from 1."""
    path: str | None = None
    """The setting here that has its value."""
    shown: str = ""
    """The value, as text."""

    def sentence(self) -> str:
        """Name, value and what happened to it."""
        pair = f"{self.key}{f' = {self.shown}' if self.shown else ''}"
        goal = f" -> {self.path}" if self.path else ""
        return f"{pair}{goal}{f': {self.why}' if self.why else ''}"


_SECRET = re.compile(r"token$|secret|passw|api_?key", re.IGNORECASE)


def shown(key: str, value: Any) -> str:
    """A value as it is shown: in one line, cut where it is long, and never a secret."""
    if value is None or _SECRET.search(key):
        return ""
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
