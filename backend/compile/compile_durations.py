"""Records how long each block class took to compile, next to the compile cache."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from backend.base.files import write_atomic

log = logging.getLogger(__name__)

_FILE = "durations.json"
_COMPILED, _CACHED = "compiled", "cached"

_Seconds = dict[str, dict[str, float]]


class Durations:
    """Seconds by block class, of the last run and of this one: of graphs compiled, and of those from the cache.

    folder: None keeps nothing on disk.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _FILE
        self._before = self._load()
        self._now: _Seconds = {}

    def _load(self) -> _Seconds:
        if self._path is None:
            return {}
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                str(kind): {way: float(took[way]) for way in (_COMPILED, _CACHED) if way in took}
                for kind, took in data.items()
            }
        except (OSError, ValueError, AttributeError, TypeError):
            # A hint only: a missing or broken file just gives none.
            return {}

    def add(self, kind: str, seconds: float, cached: bool) -> None:
        """Count `seconds` of making a graph of block class `kind`; the longest single one of each way is kept."""
        took, way = self._now.setdefault(kind, {}), _CACHED if cached else _COMPILED
        took[way] = max(seconds, took.get(way, 0.0))

    def words(self, kind: str) -> str | None:
        """What `kind` took last time: "12 s last time, 3 s from the cache"; None when not known."""
        took = self._before.get(kind, {})
        compiled, cached = took.get(_COMPILED), took.get(_CACHED)
        if compiled is None:
            return None if cached is None else f"{cached:.0f} s last time, from the cache"
        return f"{compiled:.0f} s last time" + ("" if cached is None else f", {cached:.0f} s from the cache")

    def save(self) -> None:
        """Write what is known, for the next run. A disk that refuses costs only the hint."""
        if self._path is None or not self._now:
            return
        known = {kind: self._before.get(kind, {}) | self._now.get(kind, {}) for kind in self._before | self._now}
        try:
            write_atomic(self._path, json.dumps(known, indent=1))
        except OSError as error:
            log.debug("compile durations not kept: %s", error)
