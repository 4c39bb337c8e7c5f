"""One row a training step, in ``metrics.sqlite``: written by the trainer, read by anybody at the same time.

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
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from backend.runs.folder import Run

log = logging.getLogger(__name__)

# Counters (graphs to limit_hits) are totals since the process began, sizes are bytes, times are seconds.
# syncs is the newest count of a step's device-to-host waits: taken every hundredth step, None on a CPU.
# swap_wait is what the device waited in a step for the weights of swapped blocks, None where none are swapped.
# layers_scaled to norm_max are what scale_weight_norms did and left in a step, None where it is not set.
# s_per_step is one optimizer step's own time: waiting for data counts, saving, sampling and validation do not.
COLUMNS = (
    "loss",
    "loss_smooth",
    "lr",
    "grad_norm",
    "s_per_step",
    "loader_wait",
    "vram_allocated",
    "vram_reserved",
    "vram_peak",
    "vram_total",
    "vram_free",
    "vram_others",
    "ram",
    "ram_available",
    "ram_total",
    "graphs",
    "recompiles",
    "breaks",
    "compile_seconds",
    "cache_hits",
    "cache_misses",
    "limit_hits",
    "syncs",
    "swap_wait",
    "epoch",
    "layers_scaled",
    "norm_mean",
    "norm_max",
)
_KNOWN = frozenset(COLUMNS)
_WHOLE = frozenset(
    name
    for name in COLUMNS
    if name.startswith(("vram", "ram", "cache"))
    or name in ("graphs", "recompiles", "breaks", "limit_hits", "syncs", "epoch", "layers_scaled")
)
_ALL = ("step", "generation", "t", *COLUMNS)
# Rows kept in memory while the disk refuses them; a day of steps, some tens of megabytes.
_MOST_WAITING = 100_000


class MetricsWriter:
    """Takes rows without ever waiting for the disk; a thread of its own commits them in batches.

    Close it at the end, or use it as a context manager: `close` waits for the rows still in memory. A process that is
    killed loses at most the last ``commit_every_s`` seconds.
    """

    def __init__(
        self, run: Run | str | Path, generation: int = 0, start_step: int = 0, commit_every_s: float = 0.5
    ) -> None:
        """Open or make the file, and begin a generation.

        Args:
            run: a `Run`, or the path of the sqlite file.
            generation: 0 for a first start, one more at each resume.
            start_step: the last step that stands; rows of later steps are set aside.
            commit_every_s: seconds that rows are gathered before they are committed.

        Raises:
            sqlite3.Error: the file can neither be used nor replaced.
        """
        self.path = _metrics_path(run)
        self.generation = generation
        self._commit_every_s = commit_every_s
        self._queue: queue.SimpleQueue[tuple | threading.Event | None] = queue.SimpleQueue()
        self._waiting: deque[tuple] = deque(maxlen=_MOST_WAITING)
        self._complained = False
        _prepare(self.path, generation, start_step)
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
        connection = _connect(self.path)
        barriers: list[threading.Event] = []
        closing = False
        while not closing:
            closing = self._gather(barriers)
            # At close: a few tries for a file that is only busy; a disk that stays full must not hold up the end.
            for _ in range(3 if closing else 1):
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
        marks = ", ".join("?" * len(_ALL))
        try:
            with connection:
                connection.execute("BEGIN")
                connection.executemany(
                    f"INSERT OR REPLACE INTO steps ({', '.join(_ALL)}) VALUES ({marks})", self._waiting
                )
        except sqlite3.Error as error:
            if not self._complained:
                log.warning("Metrics can't be written to %s for now: %s", self.path, error)
            self._complained = True
            return False
        self._waiting.clear()
        return True


class MetricsReader:
    """Reads a run's metrics while they are written; holds no connection between calls.

    A file that is missing, still empty or broken reads as a run without rows.
    """

    def __init__(self, run: Run | str | Path) -> None:
        self.path = _metrics_path(run)

    def count(self) -> int:
        """Number of steps recorded."""
        rows = self._query("SELECT COUNT(*) FROM steps")
        return rows[0][0] if rows else 0

    def last(self) -> dict[str, float | int | None] | None:
        """The newest row with ``step``, ``generation``, ``t`` (unix seconds) and `COLUMNS`; None when there is none."""
        rows = self.tail(1)
        return rows[0] if rows else None

    def tail(self, count: int) -> list[dict[str, float | int | None]]:
        """The newest ``count`` rows, oldest first, each with the keys that `last` has."""
        present = self._present()
        if not present:
            return []
        rows = self._query(f"SELECT {', '.join(present)} FROM steps ORDER BY step DESC LIMIT ?", (count,))
        empty = dict.fromkeys(_ALL)
        return [empty | {name: _finite(v) for name, v in zip(present, row, strict=True)} for row in reversed(rows)]

    def generations(self) -> list[dict[str, float | int]]:
        """Every start of this run: ``generation``, ``start_step`` (the last step kept), ``t`` (unix seconds)."""
        rows = self._query("SELECT generation, start_step, t FROM generations ORDER BY generation")
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
            finite value. ``generation`` growing tells a reader that keeps old points to ask anew.

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
        bounds = self._query(
            "SELECT MIN(step), MAX(step) FROM steps WHERE step >= ? AND step <= ?",
            (since, until if until is not None else 2**62),
        )
        if not present or not bounds or bounds[0][0] is None:
            return result
        low, high = bounds[0]
        size = _bucket_size(low, high, width)
        result["size"] = size
        wanted = [name for name in columns if name in present]
        parts = "".join(f", MIN({name}), MAX({name}), AVG({name})" for name in wanted)
        rows = self._query(
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
                    result[name][kind].append(_finite(value))
        for name in set(columns) - set(wanted):
            result[name] = {kind: [None] * len(rows) for kind in ("min", "max", "mean")}
        return result

    def _present(self) -> list[str]:
        """The known columns that this file has; a run of an older version lacks some."""
        have = {row[1] for row in self._query("PRAGMA table_info(steps)")}
        return [name for name in _ALL if name in have]

    def _query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple]:
        if not self.path.exists():
            return []
        # A finished run on a disk that can only be read has no place for sqlite's helper files: "immutable" needs none.
        for options in ("mode=ro", "mode=ro&immutable=1"):
            try:
                with contextlib.closing(sqlite3.connect(_uri(self.path, options), uri=True, timeout=5)) as connection:
                    return connection.execute(sql, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if "unable to open" in str(error) and options == "mode=ro":
                    continue
                # The writer makes the tables in its first moment; until then there is nothing to read.
                if "no such table" not in str(error):
                    log.warning("%s can't be read: %s", self.path, error)
                return []
            except sqlite3.DatabaseError as error:
                log.warning("%s can't be read: %s", self.path, error)
                return []
        return []


def _metrics_path(run: Run | str | Path) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.metrics_path


def _uri(path: Path, options: str) -> str:
    """A sqlite address for any path: '?', '#' and '%' escaped, drive letters after a slash."""
    text = quote(path.resolve().as_posix(), safe="/:")
    return f"file://{text if text.startswith('/') else '/' + text}?{options}"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    # Readers never wait for the writer. Where a network disk can't do it, sqlite stays in its slower mode by itself.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _prepare(path: Path, generation: int, start_step: int) -> None:
    try:
        _begin_generation(path, generation, start_step)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        # Broken by a power cut or by hand: keep it for whoever wants to look, and go on with a new one.
        aside = path.with_name(f"{path.stem}-broken-{time.strftime('%Y%m%d-%H%M%S')}{path.suffix}")
        log.warning("%s is broken (%s); it was renamed to %s and a new one begun.", path, error, aside.name)
        path.replace(aside)
        for extra in ("-wal", "-shm"):
            path.with_name(path.name + extra).unlink(missing_ok=True)
        _begin_generation(path, generation, start_step)


def _begin_generation(path: Path, generation: int, start_step: int) -> None:
    with contextlib.closing(_connect(path)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        declared = ", ".join(f"{name} {_affinity(name)}" for name in ("t", *COLUMNS))
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, generation INTEGER, {declared})"
        )
        connection.execute(f"CREATE TABLE IF NOT EXISTS discarded (step INTEGER, generation INTEGER, {declared})")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS generations (generation INTEGER PRIMARY KEY, start_step INTEGER, t REAL)"
        )
        for table in ("steps", "discarded"):
            have = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            for name in COLUMNS:
                if name not in have:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {_affinity(name)}")
        names = ", ".join(_ALL)
        connection.execute(f"INSERT INTO discarded ({names}) SELECT {names} FROM steps WHERE step > ?", (start_step,))
        connection.execute("DELETE FROM steps WHERE step > ?", (start_step,))
        connection.execute(
            "INSERT OR REPLACE INTO generations (generation, start_step, t) VALUES (?, ?, ?)",
            (generation, start_step, time.time()),
        )


def _affinity(name: str) -> str:
    """sqlite's preference, not a rule: a whole number comes back as one, half an epoch stays a half."""
    return "INTEGER" if name in _WHOLE else "REAL"


def _bucket_size(low: int, high: int, width: int) -> int:
    size = 1
    while high // size - low // size + 1 > width:
        size *= 2
    return size


def _finite(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
