"""Writes and reads one row a training step in ``metrics.sqlite``; anybody may read while the trainer writes.

A resume begins a new *generation*: the rows after the step it resumes from move to the table ``discarded``, so that the
table ``steps`` is one continuous series, each row of which knows the generation that made it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from backend.runs import metrics_file
from backend.runs.metrics_file import ALL_COLUMNS, COLUMNS, Tell
from backend.runs.paths import RunPaths

log = logging.getLogger(__name__)

_KNOWN = frozenset(COLUMNS)
QUERY_S = 5.0
"""Seconds that reading may take; a run's own file takes milliseconds."""
_REST_S = 60.0
# Rows kept in memory while the disk refuses them; a day of steps, some tens of megabytes.
_MOST_WAITING = 100_000


class MetricsWriter:
    """Takes rows without ever waiting for the disk; a thread of its own commits them in batches.

    Close it at the end, or use it as a context manager: `close` waits for the rows still in memory. A process that is
    killed loses at most the last ``commit_every_s`` seconds.
    """

    def __init__(
        self,
        run: RunPaths | str | Path,
        generation: int = 0,
        start_step: int = 0,
        commit_every_s: float = 0.5,
        tell: Tell = metrics_file.say,
        wait_s: float = 30.0,
    ) -> None:
        """Open or make the file, and begin a generation.

        Args:
            run: a run, or the path of the sqlite file.
            generation: 0 for a first start, one more at each resume.
            start_step: the last step that stands; rows of later steps are set aside.
            commit_every_s: seconds that rows are gathered before they are committed.
            tell: receives a sentence and a remedy when the file is held, damaged or removed by others.
            wait_s: how long another program may hold the file at the beginning.

        Raises:
            WriteFailed: the file can neither be used nor replaced.
        """
        self.path = _metrics_path(run)
        self.generation = generation
        self._commit_every_s = commit_every_s
        self._queue: queue.SimpleQueue[tuple | threading.Event | None] = queue.SimpleQueue()
        self._waiting: deque[tuple] = deque(maxlen=_MOST_WAITING)
        self._complained = False
        self._tell = tell
        self._repaired = False
        metrics_file.open_for_writing(self.path, generation, start_step, tell, wait_s)
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def add(self, step: int, **row: float | None) -> None:
        """Add the row of ``step`` (counted from 1); columns that are not given stay empty, NaN is stored as empty.

        Raises:
            TypeError: a column that is not in `COLUMNS`.
        """
        if unknown := row.keys() - _KNOWN:
            raise TypeError(f"no such metric: {', '.join(sorted(unknown))}")
        values = (None if (value := row.get(name)) is None else float(value) for name in COLUMNS)
        self._queue.put((int(step), self.generation, time.time(), *values))

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all rows added so far are committed; False when the disk refused them for ``timeout_s``."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Commit what is left and end the thread. Safe to call twice."""
        atexit.unregister(self.close)
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive() or self._waiting:
            log.warning("The last %d rows of %s could not be written.", len(self._waiting), self.path)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        connection = metrics_file.connect(self.path)
        mark = _identity(self.path)
        barriers: list[threading.Event] = []
        closing = False
        while not closing:
            closing = self._gather(barriers)
            # At close: a few tries for a file that is only busy; a disk that stays full must not hold up the end.
            for _ in range(3 if closing else 1):
                if _identity(self.path) != mark:
                    new = self._made_again(connection)
                    # while its folder is missing too, it is tried again at each commit
                    mark = mark if new is connection else _identity(self.path)
                    connection = new
                if self._commit(connection):
                    for barrier in barriers:
                        barrier.set()
                    barriers.clear()
                    break
                time.sleep(0.2)
        connection.close()

    def _gather(self, barriers: list[threading.Event]) -> bool:
        """Move rows from the queue for one commit interval; True when the writer is being closed."""
        # With rows left over from a failed commit, come back soon even if nothing new arrives.
        deadline = time.monotonic() + self._commit_every_s if self._waiting else None
        while True:
            wait_s = None if deadline is None else deadline - time.monotonic()
            if wait_s is not None and wait_s <= 0:
                return False
            try:
                item = self._queue.get(timeout=wait_s)
            except queue.Empty:
                return False
            if item is None:
                return True
            if isinstance(item, threading.Event):
                barriers.append(item)
                return False
            self._waiting.append(item)
            deadline = deadline or time.monotonic() + self._commit_every_s

    def _commit(self, connection: sqlite3.Connection) -> bool:
        if not self._waiting:
            return True
        marks = ", ".join("?" * len(ALL_COLUMNS))
        try:
            with connection:
                connection.execute("BEGIN")
                connection.executemany(
                    f"INSERT OR REPLACE INTO steps ({', '.join(ALL_COLUMNS)}) VALUES ({marks})", self._waiting
                )
        except sqlite3.Error as error:
            if type(error) is sqlite3.DatabaseError:
                self._repair(error)
                return False
            if not self._complained:
                log.warning("Metrics can't be written to %s for now: %s", self.path, error)
            self._complained = True
            return False
        self._waiting.clear()
        return True

    def _made_again(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """The connection to the file in place of one that somebody removed; the old one while that can't be done."""
        try:
            if _identity(self.path) is not None and self._repaired:
                self._repaired = False
            elif not metrics_file.make_again(self.path, connection, self._tell):
                return connection
            new = metrics_file.connect(self.path)
        except (sqlite3.Error, OSError) as error:
            log.warning("%s was removed and can't be written again yet: %s", self.path, error)
            return connection
        connection.close()
        return new

    def _repair(self, error: sqlite3.Error) -> None:
        """A file that turned out to be damaged gives way to one with what can be read; the next try goes there."""
        try:
            metrics_file.repair(self.path, str(error), self._tell)
            metrics_file.open_for_writing(self.path, self.generation, 2**62, self._tell, wait_s=0.0)
            self._repaired = True
        except (sqlite3.Error, OSError) as failed:
            log.warning("%s is damaged and can't be replaced: %s", self.path, failed)


class MetricsReader:
    """Reads a run's metrics while they are written; holds no connection between calls.

    A file that is missing or still empty reads as a run without rows; of a damaged one what can be read is given. A
    query that takes longer than `QUERY_S` is given up, and none is tried for a while.
    """

    def __init__(self, run: RunPaths | str | Path) -> None:
        self.path = _metrics_path(run)
        self._rest_until = 0.0
        self._whole: tuple[int, int] | None = None
        self._complaint: str | None = None

    def count(self) -> int:
        """Number of steps recorded."""
        rows = self.query("SELECT COUNT(*) FROM steps")
        return rows[0][0] if rows else 0

    def last(self) -> dict[str, float | int | None] | None:
        """The newest row with ``step``, ``generation``, ``t`` (unix seconds) and `COLUMNS`; None when there is none."""
        rows = self.tail(1)
        return rows[0] if rows else None

    def tail(self, count: int, columns: Sequence[str] = ALL_COLUMNS) -> list[dict[str, float | int | None]]:
        """The newest ``count`` rows, oldest first, each with the keys that `last` has, or those of them asked for."""
        present = [name for name in self._present() if name in columns]
        if not present:
            return []
        rows = self.query(f"SELECT {', '.join(present)} FROM steps ORDER BY step DESC LIMIT ?", (count,))
        empty = dict.fromkeys(columns)
        return [empty | {name: finite(v) for name, v in zip(present, row, strict=True)} for row in reversed(rows)]

    def generations(self) -> list[dict[str, float | int]]:
        """Every start of this run: ``generation``, ``start_step`` (the last step kept), ``t`` (unix seconds)."""
        rows = self.query("SELECT generation, start_step, t FROM generations ORDER BY generation")
        return [{"generation": generation, "start_step": step, "t": t} for generation, step, t in rows]

    def range(
        self,
        since: int = 0,
        until: int | None = None,
        width: int = 500,
        columns: Sequence[str] = ("loss",),
    ) -> dict:
        """Minimum, maximum and mean of columns over at most ``width`` buckets of steps; no extreme is ever lost.

        A bucket holds ``size`` steps, a power of two, and begins at a multiple of it, so that buckets stay the same
        while a run grows; with fewer steps than ``width`` each step is its own bucket.

        Args:
            since, until: first and last step wanted; None means the newest.
            width: the most buckets, about the pixels of the chart. At least 1.
            columns: names out of `COLUMNS`.

        Returns:
            ``{"step": [last step of each bucket], "first": [its first step], "generation": [of the last step],
            "size": steps a bucket, <column>: {"min": [], "max": [], "mean": []}}``. None marks a bucket without a
            finite value. ``generation`` growing tells a reader that keeps old points to read again.

        Raises:
            ValueError: an unknown column, or a width below 1.
        """
        if unknown := [name for name in columns if name not in _KNOWN]:
            raise ValueError(f"no such metric: {', '.join(unknown)}; known: {', '.join(COLUMNS)}")
        if width < 1:
            raise ValueError(f"a chart of {width} buckets can't be drawn")
        result: dict = {"step": [], "first": [], "generation": [], "size": 1}
        result |= {name: {"min": [], "max": [], "mean": []} for name in columns}
        present = self._present()
        bounds = self.query(
            "SELECT MIN(step), MAX(step) FROM steps WHERE step >= ? AND step <= ?",
            (since, until if until is not None else 2**62),
        )
        if not present or not bounds or bounds[0][0] is None:
            return result
        low, high = bounds[0]
        size = self.bucket_size(low, high, width)
        result["size"] = size
        wanted = [name for name in columns if name in present]
        parts = "".join(f", MIN({name}), MAX({name}), AVG({name})" for name in wanted)
        rows = self.query(
            f"SELECT MIN(step), MAX(step), MAX(generation){parts} FROM steps WHERE step >= ? AND step <= ? "
            "GROUP BY step / ? ORDER BY step / ?",
            (low, high, size, size),
        )
        for first, last, generation, *values in rows:
            result["first"].append(first)
            result["step"].append(last)
            result["generation"].append(generation)
            for position, name in enumerate(wanted):
                for kind, value in zip(("min", "max", "mean"), values[3 * position : 3 * position + 3], strict=True):
                    result[name][kind].append(finite(value))
        for name in set(columns) - set(wanted):
            result[name] = {kind: [None] * len(rows) for kind in ("min", "max", "mean")}
        return result

    def buckets(self, low: int, high: int, size: int, columns: Sequence[str]) -> list[tuple]:
        """Rows (first step, last step, generation, then minimum, maximum, sum and number of each column) a bucket.

        low, high: first and last step. size: steps a bucket, which begins at a multiple of it. A column that the file
        lacks has no values.
        """
        present = set(self._present())
        parts = "".join(
            f", MIN({name}), MAX({name}), TOTAL({name}), COUNT({name})" if name in present else ", NULL, NULL, 0.0, 0"
            for name in columns
        )
        return self.query(
            f"SELECT MIN(step), MAX(step), MAX(generation){parts} FROM steps WHERE step >= ? AND step <= ? "
            "GROUP BY step / ? ORDER BY step / ?",
            (low, high, size, size),
        )

    @staticmethod
    def bucket_size(low: int, high: int, width: int) -> int:
        """Steps a bucket, a power of two, so that the steps from `low` to `high` fill at most `width` buckets."""
        size = 1
        while high // size - low // size + 1 > width:
            size *= 2
        return size

    def identity(self) -> str:
        """A word that is another one when rows may have changed: for another file, and after each start of the run."""
        return self.news(0)[0]

    def news(self, after: int) -> tuple[str, int | None, int | None]:
        """`identity`, and the first and last step beyond `after`; None where there is none."""
        rows = self.query(
            "SELECT (SELECT COUNT(*) FROM generations), (SELECT MAX(t) FROM generations), "
            "(SELECT MIN(step) FROM steps WHERE step > ?), (SELECT MAX(step) FROM steps WHERE step > ?)",
            (after, after),
        )
        count, newest, low, high = rows[0] if rows else (0, None, None, None)
        mark = f"{_identity(self.path)},{count},{newest}".replace(" ", "")
        return (mark, low, high) if isinstance(low, int) and isinstance(high, int) else (mark, None, None)

    def _present(self) -> list[str]:
        """The known columns that this file has; a run of an older version lacks some."""
        mark = _identity(self.path)
        if mark is not None and mark == self._whole:
            return list(ALL_COLUMNS)
        have = {row[1] for row in self.query("PRAGMA table_info(steps)")}
        self._whole = mark if have.issuperset(ALL_COLUMNS) else None
        return [name for name in ALL_COLUMNS if name in have]

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple]:
        """Rows of a query; none where the file is missing, and those before the fault where it is damaged."""
        if time.monotonic() < self._rest_until or not self.path.is_file():
            return []
        # A finished run on a disk that can only be read has no place for sqlite's helper files: "immutable" needs none.
        for options in ("mode=ro", "mode=ro&immutable=1"):
            rows: list[tuple] = []
            try:
                target = metrics_file.address(self.path, options)
                with contextlib.closing(sqlite3.connect(target, uri=True, timeout=QUERY_S)) as connection:
                    deadline = time.monotonic() + QUERY_S
                    connection.set_progress_handler(lambda end=deadline: time.monotonic() > end, 50_000)
                    for row in connection.execute(sql, parameters):
                        rows.append(row)
                    return rows
            except sqlite3.OperationalError as error:
                if "unable to open" in str(error) and options == "mode=ro":
                    continue
                if "interrupted" in str(error):
                    # Such a file is not the trainer's: asked again at each look, it would hold up the page.
                    self._rest_until = time.monotonic() + _REST_S
                # The writer makes the tables in its first moment; until then there is nothing to read.
                if "no such table" not in str(error):
                    self._complain(error)
                return []
            except (sqlite3.DatabaseError, UnicodeDecodeError, OverflowError) as error:
                self._complain(error)
                return rows
        return []

    def _complain(self, error: Exception) -> None:
        """Log what is wrong with the file, once: a page asks every second."""
        if self._complaint != str(error):
            self._complaint = str(error)
            log.warning("%s can't be read as a whole: %s", self.path, error)


def _metrics_path(run: RunPaths | str | Path) -> Path:
    return run.metrics_path if isinstance(run, RunPaths) else Path(run)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def finite(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
