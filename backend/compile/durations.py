"""How long each block class took to compile last time, kept beside the compile cache."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from backend.runs.files import write_atomic

log = logging.getLogger(__name__)

_FILE = "durations.json"


class Durations:
    """Seconds by block class, of the last run and of this one. folder: None keeps nothing on disk."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _FILE
        self._before = self._load()
        self._now: dict[str, float] = {}

    def _load(self) -> dict[str, float]:
        if self._path is None:
            return {}
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(kind): float(seconds) for kind, seconds in data.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            # A hint only: a missing or broken file just gives none.
            return {}

    def add(self, kind: str, seconds: float) -> None:
        """Count `seconds` of compiling for block class `kind`; the longest single one is kept."""
        self._now[kind] = max(seconds, self._now.get(kind, 0.0))

    def last(self, kind: str) -> float | None:
        """Seconds that `kind` took last time; None when not known."""
        return self._before.get(kind)

    def save(self) -> None:
        """Write what is known, for the next run. A disk that refuses costs only the hint."""
        if self._path is None or not self._now:
            return
        try:
            write_atomic(self._path, json.dumps(self._before | self._now, indent=1))
        except OSError as error:
            log.debug("compile durations not kept: %s", error)
