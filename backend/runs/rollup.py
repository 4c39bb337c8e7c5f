"""Keeps a run's curve as buckets that grow with it, so that a look at it costs the same however long the run is.

`MetricsReader.range` reads every row each time: half a million of them take a second. Here each row is read once; what
a page has drawn already is neither read nor sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.runs.metrics import MetricsReader, finite

_MOST_BUCKETS = 4096
_BEFORE_ALL = -(2**62)
# Rows of one query, so that none runs into the time limit of the reader.
_ROWS_A_QUERY = 100_000


@dataclass(slots=True)
class _Bucket:
    """Some steps in a row."""

    first: int
    last: int
    generation: int
    values: list[list[Any]]
    """Of each column: minimum, maximum, sum, and the number of rows that have a value."""

    def merge(self, other: _Bucket) -> None:
        """Take in a bucket of later steps."""
        self.last, self.generation = other.last, max(self.generation, other.generation)
        for own, theirs in zip(self.values, other.values, strict=True):
            if theirs[3]:
                own[0] = theirs[0] if own[0] is None else min(own[0], theirs[0])
                own[1] = theirs[1] if own[1] is None else max(own[1], theirs[1])
                own[2], own[3] = own[2] + theirs[2], own[3] + theirs[3]

    def copy(self) -> _Bucket:
        return _Bucket(self.first, self.last, self.generation, [list(four) for four in self.values])


@dataclass
class Rollup:
    """The whole curve of a run in at most `_MOST_BUCKETS` buckets. Safe for several threads."""

    reader: MetricsReader
    columns: Sequence[str]
    """Names out of `metrics.COLUMNS`."""
    _size: int = 1
    _buckets: list[_Bucket] = field(default_factory=list)
    _mark: object = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def series(self, width: int, since: str | None = None, read: bool = True) -> tuple[dict[str, Any], str]:
        """The curve in at most `width` buckets, as `MetricsReader.range` gives it, and a mark for the next call.

        since: the mark of an earlier answer. Where its buckets still stand, only those from its last one on are given,
        and ``"from"`` is the first step of what they replace; without ``"from"`` it is the whole curve. read: False
        gives what was read last.
        """
        with self._lock:
            if read or not self._buckets:
                self._follow()
            if not self._buckets:
                return self._listed([], 1), f"{self._mark}:0:0"
            size = max(self._size, self.reader.bucket_size(self._buckets[0].first, self._buckets[-1].last, width))
            layout = f"{self._mark}:{size}"
            # A step that is being drawn for the first time and one that has grown are the same to a reader.
            before, _, step = (since or "").rpartition(":")
            start = int(step) // size * size if before == layout and step.isdecimal() else None
            kept = self._buckets if start is None else self._from(start)
            series = self._listed(_merged(kept, size), size)
            if start is not None:
                series["from"] = start
            return series, f"{layout}:{self._buckets[-1].last}"

    def _from(self, start: int) -> list[_Bucket]:
        index = len(self._buckets)
        while index and self._buckets[index - 1].first >= start:
            index -= 1
        return self._buckets[index:]

    def _follow(self) -> None:
        """Read the rows that are new; all of them when the run began a new generation or the file is another one."""
        mark, low, high = self.reader.news(self._buckets[-1].last if self._buckets else _BEFORE_ALL)
        if mark != self._mark:
            self._mark, self._size, self._buckets = mark, 1, []
            mark, low, high = self.reader.news(_BEFORE_ALL)
        if low is None or high is None:
            return
        first = self._buckets[0].first if self._buckets else low
        while (size := self.reader.bucket_size(first, high, _MOST_BUCKETS)) > self._size:
            self._size = size
            self._buckets = _merged(self._buckets, size)
        for begin in range(low, high + 1, _ROWS_A_QUERY):
            for row in self.reader.buckets(begin, min(high, begin + _ROWS_A_QUERY - 1), self._size, self.columns):
                values = [list(row[position : position + 4]) for position in range(3, len(row), 4)]
                self._add(_Bucket(row[0], row[1], row[2] or 0, values))

    def _add(self, bucket: _Bucket) -> None:
        if self._buckets and self._buckets[-1].last // self._size == bucket.first // self._size:
            self._buckets[-1].merge(bucket)
        else:
            self._buckets.append(bucket)

    def _listed(self, buckets: list[_Bucket], size: int) -> dict[str, Any]:
        series: dict[str, Any] = {
            "step": [bucket.last for bucket in buckets],
            "first": [bucket.first for bucket in buckets],
            "generation": [bucket.generation for bucket in buckets],
            "size": size,
        }
        for place, name in enumerate(self.columns):
            four = [bucket.values[place] for bucket in buckets]
            series[name] = {
                "min": [finite(value[0]) for value in four],
                "max": [finite(value[1]) for value in four],
                "mean": [finite(value[2] / value[3]) if value[3] else None for value in four],
            }
        return series


def _merged(buckets: list[_Bucket], size: int) -> list[_Bucket]:
    """Fewer buckets of `size` steps; those given stay as they are."""
    merged: list[_Bucket] = []
    for bucket in buckets:
        if merged and merged[-1].first // size == bucket.first // size:
            merged[-1].merge(bucket)
        else:
            merged.append(bucket.copy())
    return merged
