"""Saves LoRA and state of the last whole step when an error ends a run; where that fails, the last good LoRA."""

from __future__ import annotations

import logging
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from backend.base.errors import Failed, Refused, WriteFailed
from backend.runs.diagnose import explain
from backend.training.oom import free_after
from backend.training.trainer import Trainer

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


def ended(trainer: Trainer, error: BaseException) -> Ended:
    """Save what is whole, and say what happened, what is kept and what to change."""
    if not isinstance(error, Refused | Failed | WriteFailed):
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    diagnosis = explain(error)
    if isinstance(error, WriteFailed):
        # somebody has been given time to free space already
        trainer.saver.wait_s = 0.0
    text = f"{_sentence(diagnosis.text)} {keep(trainer, error)}"
    return Ended(text, diagnosis.cause, diagnosis.remedy, diagnosis.kind, diagnosis.exception)


def keep(trainer: Trainer, error: BaseException) -> str:
    """Save LoRA and state of the last whole step, once memory is free again; what is kept, in sentences.

    The step in which the error came is given up. Where that can't be saved, the last good LoRA is kept. Never raises.
    """
    free_after(error)
    try:
        step = trainer.return_to_whole_step()
        if step is None:
            return keep_good(trainer)
        if not step:
            return "No step was done yet, so there is nothing to keep."
        trainer.saver.save_stopped()
    except Exception as failed:  # noqa: BLE001 - the first error is what the person has to know of
        log.warning("The last step could not be saved: %s", failed)
        kept = trainer.saver.kept(trainer.position.step)
        if not kept and isinstance(failed, OSError):
            kept = _keep_elsewhere(trainer)
        lost = "The last step could not be saved."
        return kept or f"{lost} {keep_good(trainer)}"
    return trainer.saver.kept(step)


def _keep_elsewhere(trainer: Trainer) -> str:
    """Keep LoRA and state on another disk, where the run's folder takes nothing: what is where; "" where none does."""
    for folder in (Path.home(), Path(tempfile.gettempdir())):
        try:
            place = trainer.saver.save_elsewhere(folder / RESCUED)
        except Exception as failed:  # noqa: BLE001 - the next one may have room
            log.warning("Nor can it be saved in %s: %s", folder, failed)
            continue
        noun, step = trainer.saver.files.noun, trainer.position.step
        return (
            f"The run's folder takes no files: {noun} and state of step {step} are kept in {place}. To resume, copy "
            "what is in there into the run's folder."
        )
    return ""


def keep_good(trainer: Trainer) -> str:
    """Keep the LoRA of the last step whose numbers were finite; what is kept, in sentences. Never raises."""
    run, good, newest, noun = trainer.saver.run, trainer.good, None, trainer.saver.files.noun
    try:
        step, newest = trainer.saver.newest()
        if good is not None and good.step > step:
            newest = trainer.saver.save_rescued(good.tensors, good.step, good.sides)
    except Exception as failed:  # noqa: BLE001 - as above
        log.warning("The last good %s could not be saved: %s", noun, failed)
    kept = f"No {noun} was saved before it."
    if newest:
        kept = f"The last good {noun} is kept: {newest.relative_to(run.path).as_posix()}."
    has_state = survived("Looking for a resume state", run.has_state, False)
    state = "The resume state is that of the last save." if has_state else ""
    return f"{kept} {state}".rstrip()


def survived(what: str, work: Callable[[], T], otherwise: T) -> T:
    """What `work` gives; `otherwise`, and a line in the log, where it fails: the run's own result is safe already."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - nothing after the last save may make a failure of a run
        log.warning("%s failed: %s", what, error)
        return otherwise


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
