"""Tells where a run's trainer lives, and whether one on another machine or in another container shows a sign of life.

A pid means something only where it was given. On a folder that machines share, a trainer is known from afar by the file
``alive`` in its run's folder, whose time it refreshes.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from backend.runs import record
from backend.runs.process import ProcessId, boot_id

BEAT_S = 5.0
"""Seconds between two signs of life."""

FRESH_S = 60.0
"""Seconds after which a missing sign means that the trainer is gone."""

START_GRACE_S = 30.0
"""Seconds from the word that a trainer is about to be started to its first word of its own."""

_lock = threading.Lock()
# Of each file: the time it had, and when it was first seen with that time, on this process's own clock.
_seen: dict[str, tuple[int, float]] = {}


def place() -> dict[str, str | None]:
    """Where this process lives, for ``run.json``: the machine's name, and Linux's word for the set of its pids."""
    namespace = None
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "pid_namespace": namespace}


def is_here(current: Mapping) -> bool:
    """True when the pid in a run's record can be looked up on this machine; one of an older version says nothing."""
    if not isinstance(current.get("host"), str):
        return True
    own, boot = place(), boot_id()
    if boot is not None and current.get("boot") == boot:
        return current.get("pid_namespace") == own["pid_namespace"]
    # Another boot on a machine of this name is this one before it was started again.
    return current["host"] == own["host"]


def is_being_started(current: Mapping) -> bool:
    """True for a run's record between the word that a trainer is started and that trainer's own first word."""
    if current.get("state") is not None or "exit_code" in current or ProcessId.from_record(current) is not None:
        return False
    starter = current.get("starter")
    process = ProcessId.from_record(starter) if isinstance(starter, dict) else None
    recent = abs(time.time() - record.number(current, "started")) < START_GRACE_S
    return recent and process is not None and (not is_here(current) or process.is_alive())


def is_alive(current: Mapping, alive_path: Path) -> bool:
    """True while the trainer process of a run's record runs, here or elsewhere. alive_path: its sign of life."""
    process = ProcessId.from_record(current)
    if process is None:
        return False
    return process.is_alive() if is_here(current) else is_fresh(alive_path)


def is_fresh(path: Path) -> bool:
    """True while the sign of life at `path` is refreshed.

    Its time is another machine's, whose clock may be wrong: once it was seen to change, only this process's clock
    counts.
    """
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        return False
    with _lock:
        known = _seen.get(str(path))
        if known is None:
            _seen[str(path)] = (stamp, time.monotonic() - max(0.0, time.time() - stamp / 1e9))
        elif known[0] != stamp:
            _seen[str(path)] = (stamp, time.monotonic())
        return time.monotonic() - _seen[str(path)][1] < FRESH_S
