"""Defines the note on each name of the other program: imported, changed, or left out and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Fate = Literal["taken", "near", "default", "not offered", "not needed", "unknown", "off"]

HEADINGS: tuple[tuple[str, tuple[Fate, ...]], ...] = (
    ("Imported with a change", ("near",)),
    ("Not in the file: the other program's default", ("default",)),
    ("Not imported", ("not offered", "unknown")),
    ("Not needed in Monotile", ("not needed",)),
)
"""Headings of what a person has to know, in the order in which it is shown."""
NO_NAMES = frozenset(("model family", "network kind", "kind of training", "data set", "text encoders", "a command"))
"""What a note is about where the file has no name for it. On the page these words are translated."""


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

    @property
    def value(self) -> str:
        """What stands behind the name: the value, and the setting here that has it."""
        return f"{f' = {self.shown}' if self.shown else ''}{f' -> {self.path}' if self.path else ''}"

    def sentence(self) -> str:
        """Name, value and what happened to it."""
        return f"{self.key}{self.value}{f': {self.why}' if self.why else ''}"


_SECRET = re.compile(r"token$|secret|passw|api_?key", re.IGNORECASE)


def shown(key: str, value: Any) -> str:
    """A value as it is shown: in one line, cut where it is long, and never a secret."""
    if value is None or _SECRET.search(key):
        return ""
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
