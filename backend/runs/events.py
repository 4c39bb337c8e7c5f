"""The rare events of a run, one JSON line each, in ``events.jsonl``.

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
from typing import TYPE_CHECKING

from backend.base.files import open_file
from backend.base.jsonable import dumps, jsonable
from backend.base.redact import redact_value

if TYPE_CHECKING:
    from backend.runs.folder import Run

log = logging.getLogger(__name__)

VERSION = 1

KINDS = frozenset(
    {
        "phase",  # phase, done, total, eta_s
        "plan",  # the shape plan's to_dict()
        "step_total",  # total
        "memory_estimate",  # what `backend.plan.memory.report.memory_dict` gives
        "swap",  # what `backend.memory.block_swap.SwapFacts.to_dict` gives, batches, step_limit_seconds
        "memory_peak",  # vram_peak, vram_estimated, ram_peak, ram_estimated, words
        "validation",  # step, set, sigma_losses, loss
        "sample",  # step, prompt_index, file, prompt
        "checkpoint",  # step, file
        "state",  # step
        "compile",  # what one compile was, and its seconds
        "cuda_graphs",  # state (recorded, left out, failed), reason of what is left out, shapes, seconds, kept
        "recompile",  # reason, block, setting
        "graph_break",  # reason, file, line
        "warning",  # text, remedy
        "error",  # text, cause, remedy, exception
        "resumed",  # step, generation
        "stopped",  # step
        "done",  # step, lora, seconds
    }
)


class EventWriter:
    """Appends events to a run; safe to call from several threads and processes at once.

    A disk that is full never ends the training here: the event is lost, which is logged once.
    """

    def __init__(self, run: Run | str | Path) -> None:
        """Open the events of a `Run`, or the events file at a path (made if missing)."""
        self.path = Path(run) if isinstance(run, str | Path) else run.events_path
        self._lock = threading.Lock()
        self._failed = False
        # A crash may have left half a line: what comes next must not be glued to it.
        self._torn = _ends_torn(self.path)

    def write(self, kind: str, **fields: object) -> None:
        """Append one event; ``t`` is now. Secrets in strings are hidden, NaN becomes null.

        Raises:
            ValueError: ``kind`` is none of `KINDS`, or a field would overwrite ``v``, ``t`` or ``kind``.
        """
        if kind not in KINDS:
            raise ValueError(f"there is no event kind {kind!r}; known: {', '.join(sorted(KINDS))}")
        if clash := {"v", "t"} & fields.keys():
            raise ValueError(f"an event's {', '.join(sorted(clash))} can't be given")
        event = {"v": VERSION, "t": round(time.time(), 3), "kind": kind, **fields}
        line = dumps(redact_value(jsonable(event))).encode("utf-8") + b"\n"
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


def read_events(path: str | Path, offset: int = 0, until: int | None = None) -> tuple[list[dict], int]:
    """Read the events that were appended since ``offset``.

    Args:
        path: an ``events.jsonl``; a missing file has no events.
        offset: bytes already read; 0 for all.
        until: read no byte from here on; None for all there is.

    Returns:
        The events in order, and the offset for the next call. A last line without its end is left for the next call; a
        whole line that is no event, or of a later version than this code knows, is skipped.
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
    events = []
    for line in data[:end].split(b"\n"):
        event = _parse(line)
        if event is not None:
            events.append(event)
    return events, offset + end


def _parse(line: bytes) -> dict | None:
    if not line.strip():
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        log.debug("skipped a torn event line of %d bytes", len(line))
        return None
    expected = {"v": int, "t": int | float, "kind": str}
    if not isinstance(event, dict) or not all(isinstance(event.get(name), kind) for name, kind in expected.items()):
        return None
    if isinstance(event["t"], bool) or not abs(event["t"]) < 1e15:
        return None
    return event if event["v"] <= VERSION else None


def _ends_torn(path: Path) -> bool:
    try:
        with open(path, "rb") as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                return False
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) != b"\n"
    except FileNotFoundError:
        return False
