"""What became of each name of the other program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Fate = Literal["taken", "near", "default", "not offered", "not needed", "unknown", "off"]


@dataclass(frozen=True)
class Note:
    """What became of one name. line: in its file, from 1. path: the setting here that it went to."""

    key: str
    fate: Fate
    why: str = ""
    line: int | None = None
    path: str | None = None
    shown: str = ""

    def sentence(self) -> str:
        """Name, value and what became of it."""
        said = f"{self.key}{f' = {self.shown}' if self.shown else ''}"
        goes = f" -> {self.path}" if self.path else ""
        return f"{said}{goes}{f': {self.why}' if self.why else ''}"


_SECRET = re.compile(r"token$|secret|passw|api_?key", re.IGNORECASE)


def shown(key: str, value: Any) -> str:
    """A value as it is shown: in one line, cut where it is long, and never a secret."""
    if value is None or _SECRET.search(key):
        return ""
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
