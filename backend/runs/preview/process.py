"""Starts the preview's worker where there is none, and ends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from backend.base.files import locked, write_atomic
from backend.base.jsonable import dumps
from backend.runs.errors import RunError
from backend.runs.preview.folder import PreviewFolder
from backend.runs.process import ProcessId
from backend.runs.spawn import spawn_detached

_STARTING_S = 60.0


def start(folder: PreviewFolder, roots: Iterable[Path], idle_s: float = 600.0) -> None:
    """See that a worker is there. roots: folders of runs, for which the worker gives a GPU back.

    Raises:
        RunError: the process can't be started.
        WriteFailed: the folder can't be written.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.lock_path):
        if folder.is_alive() and not folder.is_asked_to_end():
            return
        _wait_gone(folder)
        folder.clear_stop()
        folder.cancel_all_but_newest()
        command = [sys.executable, "-m", "backend.preview.worker", str(folder.path), "--idle", str(idle_s)]
        command += [word for root in roots for word in ("--runs", str(root))]
        try:
            with open(folder.log_path, "wb") as output:
                process = spawn_detached(command, output, _environment())
        except OSError as error:
            raise RunError(
                f"The preview could not be started: {error}.", "Start launcher.py to repair .venv."
            ) from error
        with suppress(psutil.NoSuchProcess):
            _write_identity(folder, ProcessId.of(process.pid))


def end(folder: PreviewFolder, patience_s: float = 5.0) -> bool:
    """End the worker: ask it, wait, then end the process, which leaves whole files only. True when none is left."""
    if not folder.is_alive():
        return True
    folder.ask_to_end()
    _wait_gone(folder, patience_s)
    identity = folder.process()
    process = None if identity is None else identity.process()
    if process is not None:
        with suppress(psutil.Error):
            for child in process.children(recursive=True):
                child.kill()
            process.kill()
            process.wait(patience_s)
    return not folder.is_alive()


def give_gpu_back(folder: PreviewFolder) -> None:
    """End the worker if it may hold memory of a GPU: a training run is about to start."""
    if folder.is_alive() and folder.worker().get("gpu") is not False:
        end(folder)


def _wait_gone(folder: PreviewFolder, patience_s: float = _STARTING_S) -> None:
    until = time.monotonic() + patience_s
    while folder.is_alive() and time.monotonic() < until:
        time.sleep(0.05)


def _write_identity(folder: PreviewFolder, identity: ProcessId) -> None:
    """So that the worker counts as there from now on, and not only once it has loaded its libraries."""
    if ProcessId.from_record(folder.worker()) != identity:
        write_atomic(folder.worker_path, dumps({**identity.to_record(), "state": "starting"}))


def _environment() -> dict[str, str]:
    left_out = ("ACCELERATE_", "FSDP_", "MONOTILE_PASSWORD")
    own = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**own, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
