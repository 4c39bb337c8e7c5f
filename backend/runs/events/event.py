"""Defines what all events of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

Json = dict[str, Any]
"""Plain values by name, as JSON has them."""


@dataclass(slots=True, kw_only=True, frozen=True)
class Event:
    """One event of a run."""

    kind: ClassVar[str]
    """The word of the line's ``kind``."""

    mark: ClassVar[str] = ""
    """The field that tells classes of one kind apart: a line belongs to the class whose mark it holds."""

    t: float = 0.0
    """Unix seconds at which it was written; the writer's clock decides, whatever was given."""
