"""Reads and changes ``run.json``: a run's process, and how it ended. Changes are made under a lock."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from backend.base.files import locked, open_file, write_atomic
from backend.base.jsonable import dumps

log = logging.getLogger(__name__)

VERSION = 1

FinalState = Literal["done", "stopped", "failed", "dead"]
FINAL: frozenset[str] = frozenset({"done", "stopped", "failed", "dead"})
"""The values of ``state`` that say how a run ended."""

# A record has some kilobytes; whatever is larger is none.
_LARGEST = 4_000_000

# Fields that describe one process from its start to its end; a new start forgets them.
_OF_ONE_PROCESS = (
    "pid",
    "create_time",
    "boot",
    "ticks",
    "host",
    "pid_namespace",
    "gpus",
    "start",
    "starter",
    "started",
    "command",
    "state",
    "ended",
    "exit_code",
    "stop_asked",
    "stop_rung",
    "error",
    "result",
)


def read(path: Path) -> dict:
    """The record, or an empty one when the file is missing or broken (a run folder without it can still be shown)."""
    try:
        with open_file(path) as stream:
            data = json.loads(stream.read(_LARGEST + 1)[:_LARGEST].decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s can't be read: %s", path, error)
        return {}
    return data if isinstance(data, dict) else {}


def is_ours(record: Mapping) -> bool:
    """True for a record that this program wrote: only such a run is changed, cleaned up or deleted by itself."""
    return isinstance(record.get("v"), int) and isinstance(record.get("name"), str) and number(record, "created") > 0


def number(record: Mapping, name: str) -> float:
    """A field as a finite number; 0.0 for one that is missing or is none, as in a record that somebody edited."""
    value = record.get(name)
    # beyond this a whole number has no float, and no time has a date
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if good else 0.0  # type: ignore[arg-type]


def created(path: Path) -> float:
    """When the run of this record was made, in unix seconds; 0.0 where nothing says it."""
    try:
        status = path.stat()
    except OSError:
        return 0.0
    return _created(str(path), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=10_000)
def _created(path: str, changed_ns: int, size: int) -> float:
    # A page lists thousands of runs again and again: each record is read again once it has changed.
    return number(read(Path(path)), "created")


def update(path: Path, change: Callable[[dict], dict | None]) -> dict:
    """Change the record under its lock, so that page and trainer never undo each other's words.

    Args:
        path: the ``run.json``; made if missing.
        change: gets the record as it is, returns it as it shall be, or None to leave it.

    Returns:
        The record as it now stands.

    Raises:
        WriteFailed: it could not be written; the old one is still there.
    """
    with locked(path.with_name(path.name + ".lock")):
        record = read(path)
        changed = change(dict(record))
        if changed is None or changed == record:
            return record
        changed = {"v": VERSION, **changed}
        write_atomic(path, dumps(changed, indent=2) + "\n")
        return changed


def without_process(record: dict) -> dict:
    """The record as it stands before a new start: nothing of the process before it."""
    return {key: value for key, value in record.items() if key not in _OF_ONE_PROCESS}
