"""Finds failures that every next run would share: a full disk, or a folder of runs that can't be written."""

from __future__ import annotations

from pathlib import Path

from backend.base.errors import WriteFailed
from backend.base.files import free_bytes
from backend.runs.diagnose import explain
from backend.runs.status import RunStatus

_AGAIN = "The next run would fail the same way."
_KINDS = {
    "disk_full": f"the disk is full. {_AGAIN} Free some space, then start the queue.",
    "read_only": f"the disk can only be read. {_AGAIN} Make it writable, then start the queue.",
    "not_writable": f"its folder can't be written. {_AGAIN} Give permission to write there, then start the queue.",
}
"""`Failure.kind` -> what is wrong and what to do, as the end of a sentence and the next ones."""
_NO_ROOM = 10_000_000
"""Bytes free with which no run comes far."""


def shared_by_next(status: RunStatus) -> str:
    """Why the next run would fail as this one did, as the end of a sentence; "" for any other end."""
    if status.state not in ("failed", "dead"):
        return ""
    words = _KINDS.get("" if status.error is None else status.error.kind, "")
    if words:
        return words
    free = free_bytes(status.path)
    return _KINDS["disk_full"] if free is not None and free < _NO_ROOM else ""


def shared_by_next_start(error: BaseException, folder: Path) -> str:
    """The same of a run that could not be started. folder: that of its runs."""
    cause: BaseException | None = error
    while cause is not None:
        named = WriteFailed("", "", cause.errno) if isinstance(cause, OSError) else cause
        words = _KINDS.get(explain(named).kind, "")
        if words:
            return words
        cause = cause.__cause__
    free = free_bytes(folder)
    return _KINDS["disk_full"] if free is not None and free < _NO_ROOM else ""
