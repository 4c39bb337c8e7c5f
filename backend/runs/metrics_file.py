"""Opens, makes and repairs a run's ``metrics.sqlite``; what is in it is written and read by `backend.runs.metrics`."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from backend.base.errors import WriteFailed
from backend.base.files import unused_path

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
ALL_COLUMNS = ("step", "generation", "t", *COLUMNS)
_WHOLE = frozenset(
    name
    for name in COLUMNS
    if name.startswith(("vram", "ram", "cache"))
    or name in ("graphs", "recompiles", "breaks", "limit_hits", "syncs", "epoch", "layers_scaled")
)
# A damaged file is read in smaller and smaller parts around what can't be read, so many times at most.
_MOST_REFUSALS = 2000

Tell = Callable[[str, str], object]
"""Takes a sentence about the file and what to do about it."""


def say(text: str, remedy: str) -> None:
    """Write it to the log, where nothing else receives it."""
    log.warning("%s %s", text, remedy)


def address(path: Path, options: str) -> str:
    """A sqlite address for any path: '?', '#' and '%' escaped, drive letters after a slash."""
    text = quote(path.resolve().as_posix(), safe="/:")
    return f"file://{text if text.startswith('/') else '/' + text}?{options}"


def connect(path: Path, busy_s: float = 5.0) -> sqlite3.Connection:
    """A connection that may write, in the mode in which readers never wait for the writer. sqlite3.Error.

    busy_s: seconds that each request waits for a lock.
    """
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    # Where a network disk can't do it, sqlite stays in its slower mode by itself.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def open_for_writing(path: Path, generation: int, start_step: int, tell: Tell = say, wait_s: float = 30.0) -> None:
    """Open or make the file, repair it where it is damaged, and begin a generation.

    tell: receives a sentence about a file that another program holds, or about what was lost of a damaged one. wait_s:
    how long another program may hold it.

    Raises:
        WriteFailed: the file is held for longer, or can neither be used nor replaced.
    """
    deadline, waiting = time.monotonic() + wait_s, False
    while True:
        try:
            _begin_generation(path, generation, start_step)
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise WriteFailed(
                    f"{path} can't be written: {error}.", "Check the disk, and that you may write there."
                ) from error
            if not waiting:
                tell(f"{path.name} is in use by another program.", f"The run waits {wait_s:.0f} seconds for it.")
                waiting = True
            if time.monotonic() >= deadline:
                raise WriteFailed(
                    f"{path} is in use by another program.",
                    "Close the program that has it open (a database viewer, a backup, another trainer), then resume.",
                ) from error
            time.sleep(0.2)
        except sqlite3.DatabaseError as error:
            repair(path, str(error), tell)


def is_busy(error: sqlite3.Error) -> bool:
    """True when another connection has the file locked."""
    return any(word in str(error) for word in ("locked", "busy"))


def repair(path: Path, reason: str, tell: Tell = say) -> None:
    """Set a damaged file aside, and put one in its place with the rows that can be read."""
    aside = unused_path(path.with_name(f"{path.stem}-broken-{time.strftime('%Y%m%d-%H%M%S')}{path.suffix}"))
    log.warning("%s is broken (%s); it was renamed to %s and a new one begun.", path, reason, aside.name)
    for extra in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + extra).replace(aside.with_name(aside.name + extra))
    kept = 0
    with contextlib.closing(connect(path)) as new, new:
        new.execute("BEGIN IMMEDIATE")
        _make_tables(new)
        for columns, rows in _readable(aside):
            marks = ", ".join("?" * len(columns))
            new.executemany(f"INSERT OR REPLACE INTO steps ({', '.join(columns)}) VALUES ({marks})", rows)
            kept += len(rows)
    tell(
        f"{path.name} was damaged: the rows of {kept} steps could be read and are kept; the charts lack the others.",
        f"Training is not affected. The damaged file is kept as {aside.name}; check the disk if it happens again.",
    )


def make_again(path: Path, connection: sqlite3.Connection, tell: Tell = say) -> bool:
    """Write a file that was removed, or replaced by another, once more from a connection that still has it open.

    Returns False where its folder is gone too; sqlite3.Error or OSError when it can't be written.
    """
    if not path.parent.is_dir():
        return False
    if path.exists():
        other = unused_path(path.with_name(f"{path.stem}-replaced{path.suffix}"))
        path.replace(other)
    # They belong to the file that is gone, and sqlite would read them into the new one.
    for extra in ("-wal", "-shm"):
        path.with_name(path.name + extra).unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as new:
        connection.backup(new)
    tell(
        f"{path.name} was removed while the run was writing to it. It was written again, with all its rows.",
        "Leave the files of a run that is at work where they are.",
    )
    return True


def _readable(path: Path) -> Iterator[tuple[list[str], list[tuple]]]:
    """The rows of a damaged file, in as few parts as the damage allows; column names with each part."""
    try:
        with contextlib.closing(sqlite3.connect(address(path, "mode=rw"), uri=True, timeout=5)) as old:
            have = {row[1] for row in old.execute("PRAGMA table_info(steps)")}
            columns = [name for name in ALL_COLUMNS if name in have]
            if "step" not in columns:
                return
            waiting, refused = [(0, _last_step(old))], 0
            while waiting and refused < _MOST_REFUSALS:
                low, high = waiting.pop()
                sql = f"SELECT {', '.join(columns)} FROM steps WHERE step >= ? AND step <= ?"
                try:
                    rows = old.execute(sql, (low, high)).fetchall()
                except sqlite3.DatabaseError:
                    refused += 1
                    middle = (low + high) // 2
                    waiting += [(low, middle), (middle + 1, high)] if low < high else []
                    continue
                yield columns, [row for row in rows if isinstance(row[0], int)]
    except sqlite3.Error as error:
        log.warning("%s can't be read any further: %s", path, error)


def _last_step(connection: sqlite3.Connection) -> int:
    try:
        last = connection.execute("SELECT MAX(step) FROM steps").fetchone()[0]
    except sqlite3.DatabaseError:
        last = None
    return last if isinstance(last, int) else 2**24


def _begin_generation(path: Path, generation: int, start_step: int) -> None:
    with contextlib.closing(connect(path, busy_s=0.2)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        # A bad page in the middle shows only where a reader comes upon it, which may be months from now.
        fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if fault != "ok":
            raise sqlite3.DatabaseError(fault)
        _make_tables(connection)
        names = ", ".join(ALL_COLUMNS)
        connection.execute(f"INSERT INTO discarded ({names}) SELECT {names} FROM steps WHERE step > ?", (start_step,))
        connection.execute("DELETE FROM steps WHERE step > ?", (start_step,))
        connection.execute(
            "INSERT OR REPLACE INTO generations (generation, start_step, t) VALUES (?, ?, ?)",
            (generation, start_step, time.time()),
        )


def _make_tables(connection: sqlite3.Connection) -> None:
    declared = ", ".join(f"{name} {_affinity(name)}" for name in ("t", *COLUMNS))
    connection.execute(f"CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, generation INTEGER, {declared})")
    connection.execute(f"CREATE TABLE IF NOT EXISTS discarded (step INTEGER, generation INTEGER, {declared})")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS generations (generation INTEGER PRIMARY KEY, start_step INTEGER, t REAL)"
    )
    for table in ("steps", "discarded"):
        have = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for name in COLUMNS:
            if name not in have:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {_affinity(name)}")


def _affinity(name: str) -> str:
    """sqlite's preference, not a rule: a whole number comes back as one, half an epoch stays a half."""
    return "INTEGER" if name in _WHOLE else "REAL"
