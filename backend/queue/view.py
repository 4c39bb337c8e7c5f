"""Tells how each entry of a queue stands, and when it will begin and end as far as earlier runs say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.plan.finish.earlier_runs import expected_seconds
from backend.queue.entries import Entry, Queue, shares_gpu
from backend.queue.folder import QueueFolder
from backend.runs.folder import Run
from backend.runs.record import FINAL
from backend.runs.status import RunStatus
from backend.runs.status_reader import statuses

_MOST_LOOKED_AT = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """How an entry stands."""

    entry: Entry
    state: str
    """waiting, skipped or missing; or the run's own: starting, running, stopping, done, stopped, failed or dead."""
    text: str
    """One sentence."""
    run: str | None = None
    """The run's name."""
    step: int = 0
    total: int | None = None
    begins: float | None = None
    """Unix seconds of an entry that waits; None where it can't be told."""
    ends: float | None = None
    like: str | None = None
    """What the times are taken from: a probe, or an earlier run."""
    resumable: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the page and for JSON."""
        names = ("state", "text", "run", "step", "total", "begins", "ends", "like", "resumable")
        own = {name: getattr(self, name) for name in names}
        return {"id": self.entry.id, "name": self.entry.name, "gpu": self.entry.gpu, **own}


def rows(folder: QueueFolder, runs: Sequence[Run], now: float | None = None) -> list[Row]:
    """Every entry with its state. runs: earlier ones, newest first, whose pace tells how long an entry will take."""
    now = time.time() if now is None else now
    queue = folder.read()
    free_at: list[tuple[str | None, float | None]] = []  # of each GPU that is or will be used: when its run ends
    listed = []
    others = _others(queue, runs)
    free_at += [(gpu, _end_of(_status(run), now)) for gpu, run in others]
    for entry in queue.entries:
        row = _waiting(folder, entry, runs, free_at, now) if entry.phase == "waiting" else _begun(folder, entry, now)
        if entry.phase == "waiting" or row.state in ("starting", "running", "stopping"):
            free_at.append((entry.gpu, row.ends))
        blocking = next((run for gpu, run in others if shares_gpu(gpu, entry.gpu)), None)
        if queue.on and row.state == "waiting" and blocking is not None:
            row = replace(row, text=f"{row.text} {blocking.name}, which is not of this queue, is at work.")
        listed.append(row)
    return listed


def _others(queue: Queue, runs: Sequence[Run]) -> list[tuple[str | None, Run]]:
    """Runs at work that were started elsewhere, each with the number of its GPU; None for several or any."""
    own = {entry.run for entry in queue.entries if entry.phase != "waiting"}
    at_work = [run for run in runs[:_MOST_LOOKED_AT] if str(run.path) not in own and run.is_at_work()]
    numbers = [str(run.record().get("gpus")) for run in at_work]
    return [(number if number.isdecimal() else None, run) for number, run in zip(numbers, at_work, strict=True)]


def _status(run: Run) -> RunStatus:
    """The status of a run; of one whose end is written down, read once."""
    if str(run.record().get("state")) not in FINAL:
        return statuses([run])[0]
    try:
        return _ended_status(run.path, run.record_path.stat().st_mtime_ns)
    except OSError:
        return statuses([run])[0]


@lru_cache(maxsize=256)
def _ended_status(path: Path, written_ns: int) -> RunStatus:
    return statuses([Run(path)])[0]


def _end_of(status: RunStatus, now: float) -> float | None:
    return now + status.eta_s if status.active and status.phase == "train" and status.eta_s is not None else None


def _begun(folder: QueueFolder, entry: Entry, now: float) -> Row:
    if entry.phase == "skipped":
        return Row(entry=entry, state="skipped", text="Skipped.")
    run = None if entry.run is None else Run(entry.run)
    if run is None or entry.failure is not None:
        why = entry.failure or f"It could not be started. {folder.log_path} says why."
        return Row(entry=entry, state="failed", text=why)
    if not run.path.is_dir():
        return Row(entry=entry, state="missing", text="Its run folder was deleted.")
    status = _status(run)
    return Row(
        entry=entry,
        state=status.state,
        text=status.text,
        run=run.name,
        step=status.step,
        total=status.total_steps,
        ends=_end_of(status, now),
        resumable=status.resumable,
    )


def _waiting(
    folder: QueueFolder,
    entry: Entry,
    runs: Sequence[Run],
    free_at: Sequence[tuple[str | None, float | None]],
    now: float,
) -> Row:
    before = [end for gpu, end in free_at if shares_gpu(gpu, entry.gpu)]
    known = [end for end in before if end is not None]
    begins = None if len(known) < len(before) else max([now, *known])
    config = folder.config(entry.id).config
    expected = None if config is None else expected_seconds(config, runs)
    text = "Waiting."
    if entry.resume:
        text = "Waiting; it continues from its saved state."
        expected = None
    ends = None if begins is None or expected is None else begins + expected[0]
    like = None if expected is None else expected[1]
    return Row(entry=entry, state="waiting", text=text, begins=begins, ends=ends, like=like)
