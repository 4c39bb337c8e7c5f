"""Notices a trainer that is alive but gives no sign: paused by a signal, or hanging in a driver, a disk or a lock."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil

from backend.runs.eta import spoken
from backend.runs.paths import RunPaths
from backend.runs.process import ProcessId

USUAL_STEPS = 30
"""A step may take so many times as long as usual: a save or an evaluation without a phase of its own."""

LEAST_S = 120.0
"""A shorter silence in training is no problem."""

OTHER_PHASES_S = 900.0
"""The same in phases without steps; a large model loads for minutes without a sign."""


class HangDetector:
    """Watches the files that a run's trainer writes. Keep one for repeated asking: it then goes by its own clock."""

    def __init__(self, run: RunPaths) -> None:
        self._files = (run.log_path, run.events_path, run.metrics_path, Path(f"{run.metrics_path}-wal"))
        self._stamp: int | None = None
        self._since = 0.0

    def seconds(self) -> float:
        """Seconds since the trainer last wrote anything; 0 where it has written nothing yet."""
        stamps = []
        for path in self._files:
            with suppress(OSError):
                status = path.stat()
                # whoever only reads the metrics makes an empty -wal
                if status.st_size:
                    stamps.append(status.st_mtime_ns)
        if not stamps:
            return 0.0
        newest = max(stamps)
        if newest != self._stamp:
            # Only the first look goes by the clock on the wall, which may have been set since.
            known = 0.0 if self._stamp is not None else max(0.0, time.time() - newest / 1e9)
            self._stamp, self._since = newest, time.monotonic() - known
        return time.monotonic() - self._since

    def sentence(self, process: ProcessId | None, phase: str | None, usual_s: float | None) -> tuple[str, str] | None:
        """What is wrong with a live trainer and what to do, or None.

        process: the trainer, None where it runs on another machine. usual_s: seconds of a usual step, None if unknown.
        """
        quiet_s = self.seconds()
        if process is not None and _is_paused(process):
            return (
                f"The trainer (process {process.pid}) is paused by a signal, as by Ctrl+Z or kill -STOP.",
                f"Let it continue with: kill -CONT {process.pid}. Or press Stop: the last saved state is kept.",
            )
        training = phase in ("train", None)
        limit_s = max(LEAST_S, USUAL_STEPS * usual_s) if training and usual_s is not None else OTHER_PHASES_S
        if quiet_s <= limit_s:
            return None
        usual = f"; a step usually takes {usual_s:.1f} s" if training and usual_s is not None else ""
        return (
            f"The trainer has given no sign for {spoken(quiet_s)}{usual}.",
            "The GPU driver or a disk may hang. Look at the log. If nothing new appears there, press Stop, then "
            "resume: the last saved state is kept.",
        )


def _is_paused(process: ProcessId) -> bool:
    live = process.process()
    if live is None:
        return False
    try:
        return live.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
