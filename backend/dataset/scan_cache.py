"""Keeps on disk what earlier scans measured, so that a second scan of the same files only lists them.

A row is trusted only while the file's size, modification time and change time are the same. A file touched within
`YOUNG_S` of being measured is not remembered: a second change within the clock's grain would go unseen.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.dataset.clips import ClipFacts
from backend.dataset.looks import Look

log = logging.getLogger(__name__)

FILE_NAME = "scan.sqlite"
YOUNG_S = 2.0
# Raise it when the meaning of a row changes.
_VERSION = 3
_COLUMNS = "path, size, mtime_ns, ctime_ns, key, width, height, has_alpha, animated, fault, profile, clip"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size in bytes and the times of last content and last status change in ns, by which a file is recognised."""

    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The stamp of the file at `path`; OSError when it is gone."""
        stat = os.stat(path)
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def is_young(self, now_s: float) -> bool:
        """Whether the file was touched so lately (or in the future) that another change could hide."""
        return now_s - max(self.mtime_ns, self.ctime_ns) / 1e9 < YOUNG_S


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of one file: its content key and measures, or why it is no usable picture (`fault`).

    profile: what its colour profile does, as in `images.Probe`. clip: its frames, where it was measured as a clip.
    look: as in `images.Probe`; kept by content, and not read back with the rest (see `ScanCache.looks`).
    """

    key: str = ""
    width: int = 0
    height: int = 0
    has_alpha: bool = False
    animated: bool = False
    fault: str | None = None
    profile: str = ""
    clip: ClipFacts | None = None
    look: Look | None = field(default=None, compare=False)


class ScanCache:
    """Rows by path in one SQLite file below `folder`; without a folder there is no memory.

    Nothing here raises for the cache's own troubles (a broken file, a folder that can't be written): a scan without
    memory is only slower.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        self._rows: dict[bytes, tuple[Stamp, Measured]] = {}
        if self._path is not None:
            self._rows = self._read(self._path)

    def get(self, path: Path) -> Measured | None:
        """What an earlier scan measured, if the file is still the same."""
        row = self._rows.get(os.fsencode(os.path.abspath(path)))
        if row is None:
            return None
        try:
            return row[1] if row[0] == Stamp.of(path) else None
        except OSError:
            return None

    def put(self, rows: Iterable[tuple[Path, Stamp, Measured]]) -> None:
        """Remember measures; files touched just now are left out, except for the look of their content."""
        rows, now = list(rows), time.time()
        values = [
            (os.fsencode(os.path.abspath(path)), s.size, s.mtime_ns, s.ctime_ns)
            + (m.key, m.width, m.height, m.has_alpha, m.animated, m.fault, m.profile)
            + (None if m.clip is None else json.dumps(m.clip.to_dict()),)
            for path, s, m in rows
            if not s.is_young(now)
        ]
        marks = ", ".join("?" * (_COLUMNS.count(",") + 1))
        self._write(f"INSERT OR REPLACE INTO images ({_COLUMNS}) VALUES ({marks})", values)
        self.put_looks({m.key: m.look for _, _, m in rows if m.look is not None})

    def looks(self) -> dict[str, Look]:
        """The look of each content that was measured, by its key."""
        if self._path is None or not self._path.is_file():
            return {}
        try:
            with contextlib.closing(_open(self._path)) as connection:
                return {key: Look(*row) for key, *row in connection.execute("SELECT key, grey, peak FROM looks")}
        except (sqlite3.Error, OSError) as error:
            log.info("the scan cache can't be read: %s", error)
            return {}

    def put_looks(self, looks: Mapping[str, Look]) -> None:
        """Remember looks by content key."""
        values = [(key, look.grey, look.peak) for key, look in looks.items()]
        self._write("INSERT OR REPLACE INTO looks (key, grey, peak) VALUES (?, ?, ?)", values)

    def _write(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        if not values or self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(_open(self._path)) as connection, connection:
                connection.executemany(statement, values)
        except (sqlite3.Error, OSError) as error:
            log.info("the scan cache was not written to %s: %s", self._path, error)

    def _read(self, path: Path) -> dict[bytes, tuple[Stamp, Measured]]:
        if not path.is_file():
            return {}
        try:
            with contextlib.closing(_open(path)) as connection:
                rows = connection.execute(f"SELECT {_COLUMNS} FROM images").fetchall()
            return {row[0]: (Stamp(*row[1:4]), _measured(*row[4:])) for row in rows}
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                log.info("the scan cache can't be read: %s", error)
                return {}
            log.warning("the scan cache is damaged and is created again: %s", error)
        except (OSError, TypeError, ValueError) as error:
            log.warning("the scan cache is damaged and is created again: %s", error)
        with contextlib.suppress(OSError):
            path.unlink()
        return {}


def _measured(
    key: str, width: int, height: int, alpha: int, animated: int, fault: str | None, profile: str, clip: str | None
) -> Measured:
    facts = None if clip is None else ClipFacts(**json.loads(clip))
    return Measured(key, width, height, bool(alpha), bool(animated), fault, profile, facts)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5.0)
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            with connection:
                connection.execute("DROP TABLE IF EXISTS images")
                connection.execute(
                    "CREATE TABLE images (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER, "
                    "key TEXT, width INTEGER, height INTEGER, has_alpha INTEGER, animated INTEGER, fault TEXT, "
                    "profile TEXT, clip TEXT)"
                )
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        # by content, so that it stays true whatever becomes of a row's meaning
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("CREATE TABLE IF NOT EXISTS looks (key TEXT PRIMARY KEY, grey BLOB, peak INTEGER)")
    except BaseException:
        connection.close()
        raise
    return connection
