"""Lets one start at a time through: whether GPU or CPU is free is looked up and the trainer started under one lock.

Page and terminal of one checkout share the lock, so that of two starts at the same moment one sees the other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from backend.base.errors import WriteFailed
from backend.base.files import locked, write_atomic
from backend.runs.errors import RunBusy
from backend.runs.folder import Run
from backend.runs.liveness import is_here
from backend.runs.process import boot_id
from backend.setup.machine import has_gpu

log = logging.getLogger(__name__)

AMD_DRIVER = Path("/dev/kfd")
LOCK = Path(__file__).resolve().parents[2] / "runs" / ".start.lock"
_PROBES = ".probes.txt"
"""Folders of the probes at work, a line each (backend.plan.finish)."""
# A resume waits inside for the process before it to take its libraries down.
_PATIENCE_S = 90.0
# For disks without locks; the file is what other processes see.
_threads = threading.Lock()


@contextmanager
def one_start(runs: Callable[[], Iterable[Run]], but: Run | None = None, gpus: str | None = None) -> Iterator[None]:
    """Hold the lock of starts; what is started within is seen by the next one.

    Args:
        runs: gives the runs that may be at work on the same machine; asked once the lock is held.
        but: a run that does not count, the one that is to be resumed.
        gpus: the GPUs that the new run will see, as in CUDA_VISIBLE_DEVICES; None for those of this process.

    Raises:
        RunBusy: another run is at work, or another start does not come to its end.
    """
    with ExitStack() as stack:
        if not _threads.acquire(timeout=_PATIENCE_S):
            raise _stuck()
        stack.callback(_threads.release)
        _lock_file(stack)
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") if gpus is None else gpus
        known = [*runs(), *probes()]
        other = next((run for run in known if run != but and run.is_at_work() and shares_device(run, seen)), None)
        if other is not None:
            raise _busy(other, seen)
        yield


def announce_probe(run: Run) -> None:
    """Let all starts know of a probe, which lies in no folder of runs. Called while `one_start` is held."""
    running = [probe.path for probe in probes() if probe.is_at_work()]
    try:
        write_atomic(LOCK.with_name(_PROBES), "".join(f"{path}\n" for path in [*running, run.path]))
    except OSError as error:
        log.debug("other starts will not know of the probe: %s", error)


def probes() -> list[Run]:
    """Finish times that are being measured, each a run in no folder of runs; some may have ended."""
    try:
        return [Run(path) for path in LOCK.with_name(_PROBES).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []


def _lock_file(stack: ExitStack) -> None:
    try:
        LOCK.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(LOCK, _PATIENCE_S))
    except WriteFailed as error:
        if error.errno is None:  # held for too long; all else has a number
            raise _stuck() from error
        log.debug("starts are not locked against other processes: %s", error)
    except OSError as error:
        log.debug("starts are not locked against other processes: %s", error)


def _stuck() -> RunBusy:
    return RunBusy("Another run has been starting for too long.", "Look at the runs, then start again.")


def _busy(other: Run, seen: str | None) -> RunBusy:
    if other in probes():
        return RunBusy(
            "A finish time is being measured, and two at once would share one GPU, or the CPU.",
            "Wait until it is known, or stop it, or the tune that asks for it, on the Training tab or in its terminal.",
        )
    if not _uses_gpu(seen):
        return RunBusy(
            f"The run {other.name} is still running on this machine's CPU, and two at once would share its cores and "
            "its RAM.",
            "Stop it first, or wait until it ends.",
        )
    return RunBusy(
        f"The run {other.name} is still running, and two at once would share one GPU.",
        "Stop it first, or wait until it ends. On a machine with several GPUs, give each run its own from a "
        "terminal: CUDA_VISIBLE_DEVICES=1 before the command.",
    )


def _uses_gpu(visible: str | None) -> bool:
    """Whether a trainer with this CUDA_VISIBLE_DEVICES computes on a GPU: there is one, and not all are hidden."""
    hidden = visible is not None and visible.strip() in ("", "-1")
    return not hidden and (has_gpu() or AMD_DRIVER.exists())


def shares_device(run: Run, gpus: str | None = None) -> bool:
    """Whether a run may compute on one of `gpus` too, or both on the CPU. gpus: None for those of this process."""
    known = run.record()
    if not is_here(known) and known.get("boot") not in (None, boot_id()):
        return False  # another machine, that shares the folder; a container of this one has its boot
    theirs, own = known.get("gpus"), os.environ.get("CUDA_VISIBLE_DEVICES") if gpus is None else gpus
    theirs = theirs if isinstance(theirs, str) else None
    if not _uses_gpu(theirs) or not _uses_gpu(own):
        return _uses_gpu(theirs) == _uses_gpu(own)
    if theirs is None or own is None:
        return True
    return bool({part.strip() for part in theirs.split(",")} & {part.strip() for part in own.split(",")})
