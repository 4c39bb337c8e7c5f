"""Saves LoRA and state of the last whole step when an error ends a run; where that fails, the last good LoRA."""

from __future__ import annotations

import logging
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from backend.base.errors import Failed, Refused, WriteFailed
from backend.runs.diagnose import explain
from backend.training.oom import free_after
from backend.training.step_log import NotFinite

if TYPE_CHECKING:
    from backend.training.job import Job

log = logging.getLogger(__name__)

T = TypeVar("T")

RESCUED = "monotile-rescued"
"""Folder in a person's home, or in the system's for temporary files, for what the run's own disk refuses."""


class Ended(Failed):
    """A run that an error ended. kind, cause: those of `backend.runs.diagnose`. exception: as Python writes it."""

    def __init__(self, text: str, cause: str, remedy: str, kind: str, exception: str | None) -> None:
        super().__init__(text, remedy)
        self.cause = cause
        self.kind = kind
        self.exception = exception


def ended(job: Job, error: BaseException) -> Ended:
    """Save what is whole, and say what happened, what is kept and what to change."""
    if not isinstance(error, Refused | Failed | WriteFailed):
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    found = explain(error)
    if isinstance(error, WriteFailed):
        # somebody has been given time to free space already
        job.saver.wait_s = 0.0
    said = f"{_sentence(found.text)} {keep(job, error)}"
    return Ended(said, found.cause, found.remedy, found.kind, found.exception)


def keep(job: Job, error: BaseException) -> str:
    """Save LoRA and state of the last whole step, once memory is free again; what is kept, in sentences.

    The step in which the error came is given up. Where that can't be saved, the last good LoRA is kept. Never raises.
    """
    free_after(error)
    try:
        step = _stand_at_whole_step(job)
        if step is None:
            return keep_good(job)
        if not step:
            return "No step was done yet, so there is nothing to keep."
        job.saver.save_stopped()
    except Exception as failed:  # noqa: BLE001 - the first error is what the person has to know of
        log.warning("The last step could not be saved: %s", failed)
        kept = job.saver.kept(job.position.step)
        if not kept and isinstance(failed, OSError):
            kept = _keep_elsewhere(job)
        return kept or f"The last step could not be saved. {keep_good(job)}"
    return job.saver.kept(step)


def _keep_elsewhere(job: Job) -> str:
    """Keep LoRA and state on another disk, where the run's folder takes nothing: what is where; "" where none does."""
    for folder in (Path.home(), Path(tempfile.gettempdir())):
        try:
            place = job.saver.save_elsewhere(folder / RESCUED)
        except Exception as failed:  # noqa: BLE001 - the next one may have room
            log.warning("Nor can it be saved in %s: %s", folder, failed)
            continue
        return (
            f"The run's folder takes no files: LoRA and state of step {job.position.step} are kept in {place}. To "
            "resume, copy what is in there into the run's folder."
        )
    return ""


def keep_good(job: Job) -> str:
    """Keep the LoRA of the last step whose numbers were finite; what is kept, in sentences. Never raises."""
    run, good, newest = job.saver.run, job.good, None
    try:
        step, newest = job.saver.newest()
        if good is not None and good.step > step:
            newest = job.saver.save_rescued(good.tensors, good.step)
    except Exception as failed:  # noqa: BLE001 - as above
        log.warning("The last good LoRA could not be saved: %s", failed)
    kept = f"The last good LoRA is kept: {newest.relative_to(run.path).as_posix()}." if newest else ""
    has_state = survived("Looking for a resume state", run.has_state, False)
    state = "The resume state is that of the last save." if has_state else ""
    return " ".join(filter(None, (kept or "No LoRA was saved before it.", state)))


def survived(what: str, work: Callable[[], T], otherwise: T) -> T:
    """What `work` gives; `otherwise`, and a line in the log, where it fails: the run's own result is safe already."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - nothing after the last save may make a failure of a run
        log.warning("%s failed: %s", what, error)
        return otherwise


def _stand_at_whole_step(job: Job) -> int | None:
    """Bring the position to the last whole step, and return it; None when weights and optimizer are of no whole one."""
    try:
        job.records.settle()
        job.note_settled(job.position.step)
    except NotFinite:
        return None
    except Exception as failed:  # noqa: BLE001 - a device that no longer answers; what is on it is tried next
        log.warning("The last step's numbers could not be read: %s", failed)
    if job.whole is not None and not job.whole.step and not job.whole.micro:
        return 0
    if job.torn or job.whole is None:
        return None
    for name, value in vars(job.whole).items():
        # the smoothed loss and the time were counted on since
        if name not in ("smooth", "smooth_weight", "seconds"):
            setattr(job.position, name, value)
    job.optimizer.zero_grad()
    return job.position.step


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
