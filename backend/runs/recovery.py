"""Puts right what a crash or a power cut left: records, old requests, half-written files and stray processes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from backend.base.files import remove_abandoned
from backend.runs import record
from backend.runs.control import Control
from backend.runs.folder import FINAL, Run, list_runs
from backend.runs.liveness import START_GRACE_S, is_being_started, is_here
from backend.runs.process import MARKER, START, ProcessId, Tree
from backend.runs.status import RunStatus

log = logging.getLogger(__name__)


def reconcile(root: str | Path) -> list[RunStatus]:
    """Put right what a crash or power cut left in the records; called when the page or the terminal starts.

    A run whose process is gone gets its end written down with the likely cause; old requests and half-written files are
    removed, and processes that a dead trainer left behind are ended. Runs that are alive, or that another machine
    trained, are left alone, and so is a folder whose record this program did not write.

    Returns:
        The status of each run that was changed.
    """
    changed = []
    runs = [run for run in list_runs(root) if record.is_ours(run.record())]
    for run in runs:
        try:
            current = run.record()
            if current.get("state") not in FINAL and is_here(current) and not run.is_alive(current):
                status = settle(run)
                if status.state in FINAL:
                    changed.append(status)
        except Exception as error:  # noqa: BLE001 - whatever is odd about one folder must not keep the page from opening
            log.warning("The record of %s can't be put right: %s", run.name, error)
    _end_strays({str(run.path): run for run in runs})
    return changed


def settle(run: Run) -> RunStatus:
    """Write down how a run ended whose process is gone and did not say so itself; does nothing to one that is alive.

    A run of another machine is left to that machine.
    """
    current = run.record()
    word = current.get("start")
    status = run.status()
    if status.active or not is_here(current):
        return status
    if current.get("state") not in FINAL:
        error = status.error
        fields: dict[str, object] = {"step": status.step}
        if error is not None:
            fields["error"] = {
                "text": error.text,
                "cause": error.cause,
                "remedy": error.remedy,
                "exception": error.exception,
            }
        # The trainer ended when it last wrote something, which may be days before this is written down.
        run.finish(status.state, ended=_last_sign(run), start=word, **fields)  # type: ignore[arg-type]

    def clear(current: dict) -> None:
        # under the record's lock: a start that came in between has requests and files of its own
        if current.get("start") == word:
            Control(run).clear_all()
            remove_abandoned(run.path)

    record.update(run.record_path, clear)
    return run.status()


def _last_sign(run: Run) -> float | None:
    times = []
    for path in (run.log_path, run.events_path, run.metrics_path, Path(f"{run.metrics_path}-wal")):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    begun = record.number(run.record(), "started")
    return max(times) if times and max(times) >= begun else None


def end_tree(tree: Tree) -> None:
    """End the processes of a run whose trainer is gone, however they take it."""
    for rung, patience_s in (("TERM", 5.0), ("KILL", 5.0)):
        tree.send(rung)
        if not tree.wait_gone(patience_s):
            return
    log.warning("Processes of %s could not be ended.", tree.marker)


def _end_strays(runs: Mapping[str, Run]) -> None:
    """End what the trainers of these runs left behind; one look at the processes serves all runs.

    What a start left behind carries its word, so that a start that comes meanwhile is never hit.
    """
    left: set[tuple[str, str | None]] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(MARKER) in runs and process.pid != os.getpid():
                left.add((environment[MARKER], environment.get(START)))
    for marker, word in left:
        current = runs[marker].record()
        leader = ProcessId.from_record(current)
        if leader is None or word != current.get("start") or not is_here(current) or is_being_started(current):
            continue
        recent = time.time() - record.number(current, "started") < START_GRACE_S
        if not leader.is_alive() and not recent:
            log.warning("Ending processes that %s left behind.", runs[marker].name)
            end_tree(Tree(leader, marker, word))
