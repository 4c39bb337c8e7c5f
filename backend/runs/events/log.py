"""Writes and reads the rare events of a run, one JSON line each, in ``events.jsonl``.

Every line is ``{"v": 1, "t": <unix seconds>, "kind": <word>, ...}``. Lines are only ever appended, each by one write,
so that a reader that keeps its byte offset sees every event once; a line torn by a crash costs that line and no other.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path

from backend.base.files import open_file
from backend.base.jsonable import dumps, jsonable
from backend.base.redact import redact_value
from backend.runs.events.kinds import Event, from_fields, to_fields
from backend.runs.paths import RunPaths

log = logging.getLogger(__name__)

VERSION = 1


class EventWriter:
    """Appends events to a run; safe to call from several threads and processes at once.

    A disk that is full never ends the training here: the event is lost, which is logged once.
    """

    def __init__(self, run: RunPaths | str | Path) -> None:
        """Open the events of a run, or the events file at a path (made if missing)."""
        self.path = run.events_path if isinstance(run, RunPaths) else Path(run)
        self._lock = threading.Lock()
        self._failed = False
        # A crash may have left half a line: what comes next must not be glued to it.
        self._torn = _ends_torn(self.path)

    def write(self, event: Event) -> None:
        """Append one event; ``t`` is now. Secrets in strings are hidden, NaN becomes null."""
        line_fields = {"v": VERSION, "t": round(time.time(), 3), "kind": event.kind, **to_fields(event)}
        line = dumps(redact_value(jsonable(line_fields))).encode("utf-8") + b"\n"
        with self._lock:
            self._append(line)

    def _append(self, line: bytes) -> None:
        payload = b"\n" + line if self._torn else line
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            try:
                written = os.write(descriptor, payload)
            finally:
                os.close(descriptor)
            self._torn = written != len(payload)
        except OSError as error:
            if not self._failed:
                log.warning("An event could not be written to %s: %s", self.path, error.strerror or error)
            self._failed = True


def read_events(path: str | Path, offset: int = 0, until: int | None = None) -> tuple[list[Event], int]:
    """Read the events that were appended since ``offset``.

    Args:
        path: an ``events.jsonl``; a missing file has no events.
        offset: bytes already read; 0 for all.
        until: read no byte from here on; None for all there is.

    Returns:
        The events in order, and the offset for the next call. A last line without its end is left for the next call. A
        whole line that is no event, or of a version or kind that this code does not know, is skipped.
    """
    try:
        with open_file(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size < offset:  # the file was replaced by a shorter one
                offset = 0
            stream.seek(offset)
            data = stream.read(-1 if until is None else max(0, until - offset))
    except OSError:  # missing, not to be read, or no plain file
        return [], 0
    end = data.rfind(b"\n") + 1
    events = (_parse(line) for line in data[:end].split(b"\n") if line.strip())
    return [event for event in events if event is not None], offset + end


def _parse(line: bytes) -> Event | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        log.debug("skipped a torn event line of %d bytes", len(line))
        return None
    expected = {"v": int, "t": int | float, "kind": str}
    if not isinstance(values, dict) or not all(isinstance(values.get(name), kind) for name, kind in expected.items()):
        return None
    if isinstance(values["t"], bool) or not abs(values["t"]) < 1e15 or values["v"] > VERSION:
        return None
    event = from_fields(values)
    if event is None:
        log.debug("skipped an event of kind %s: it is unknown, or lacks a field that it needs", values["kind"])
    return event


def _ends_torn(path: Path) -> bool:
    try:
        with open(path, "rb") as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                return False
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) != b"\n"
    except FileNotFoundError:
        return False
