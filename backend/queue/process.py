"""Starts the queue's process where there is something to start, and none is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from backend.base.files import locked, write_atomic
from backend.base.jsonable import dumps
from backend.queue.folder import QueueFolder
from backend.runs.errors import RunError
from backend.runs.process import ProcessId
from backend.runs.spawn import spawn_detached


def see_to(folder: QueueFolder, roots: Iterable[Path], preview: Path | None = None) -> None:
    """See that a process works on the queue, where that is on or one of its runs was not seen to its end.

    roots: folders of runs that may be at work on the same GPU. preview: the folder of the page's preview, which gives
    the GPU back at each start.

    Raises:
        RunError: the process can't be started.
        WriteFailed: the folder can't be written.
    """
    if not folder.queue_path.exists() or folder.is_alive() or not is_needed(folder):
        return
    with locked(folder.lock_path):
        if folder.is_alive() or not is_needed(folder):
            return
        command = [sys.executable, "-m", "backend.queue.worker", str(folder.path)]
        command += [word for root in roots for word in ("--runs", str(root))]
        command += [] if preview is None else ["--preview", str(preview)]
        try:
            with open(folder.log_path, "ab") as output:
                process = spawn_detached(command, output, _environment())
        except OSError as error:
            raise RunError(f"The queue could not be started: {error}.", "Start launcher.py to repair .venv.") from error
        with suppress(psutil.NoSuchProcess):
            write_atomic(folder.worker_path, dumps(ProcessId.of(process.pid).to_record()))


def is_needed(folder: QueueFolder) -> bool:
    """Whether there is something to start, or a run whose end nobody has seen."""
    queue = folder.read()
    unseen = queue.leaving or any(entry.phase == "started" for entry in queue.entries)
    return bool(unseen) or (queue.on and bool(queue.waiting()))


def _environment() -> dict[str, str]:
    """This process's own, without the page's password."""
    own = {name: value for name, value in os.environ.items() if name != "MONOTILE_PASSWORD"}
    return {**own, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
