"""How a run ends: what is written down when it is done or stopped, and what is kept when its numbers went wrong."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from backend.base.errors import Failed, WriteFailed
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.training import oom
from backend.training.expected_memory import hold_against_peak
from backend.training.job import Job
from backend.training.loop import train
from backend.training.step_log import NotFinite

log = logging.getLogger(__name__)


def train_to_end(run: Run, job: Job, events: EventWriter) -> None:
    """Train and write the end into events and record. Failed, after the last good LoRA was kept, when loss or
    gradients are lost or memory has run out; everything else is passed on."""
    try:
        ending = train(job)
    except NotFinite as lost:
        raise _kept(run, job, lost) from lost
    except (RuntimeError, MemoryError, OSError) as error:
        if not oom.is_out_of_memory(error):
            raise
        raise oom.told(error, events, job.expected, job.shape_words(), partial(_kept_whole, job, error)) from error
    finally:
        memory = hold_against_peak(events, job.expected, job.watch.meter)
    job.count_time()
    position = job.position
    if ending == "stopped":
        events.write("stopped", step=position.step)
        run.finish("stopped", step=position.step)
        log.info("Stopped at step %d; resume goes on from there.", position.step)
        return
    job.watch.end()
    result = {
        "step": position.step,
        "lora": str(job.saver.final),
        "seconds": round(position.seconds, 2),
        "loss": job.records.last_loss,
        "loss_smooth": position.smooth / position.smooth_weight if position.smooth_weight else None,
        "validation": job.duties.measured,
        "memory": memory,
    }
    events.write("done", **result)
    run.finish("done", **result)
    log.info("Done: %d steps in %.0f s, %s", position.step, position.seconds, job.saver.final)


def _kept(run: Run, job: Job, lost: NotFinite) -> Failed:
    """Keep the LoRA of the last step whose numbers were finite, and say all this."""
    step, newest = job.saver.newest()
    good = job.good
    if good is not None and good.step > step:
        newest = job.saver.save_rescued(good.tensors, good.step)
    kept = f"The last good LoRA is kept: {_short(run, newest)}." if newest else "No step before it was saved."
    state = " The resume state is that of the last save." if run.has_state() else ""
    remedy = (
        "Start again from it (network_weights) with a lower learning rate, a longer warm-up, or bf16 instead of fp16."
    )
    return Failed(f"{lost} Training was stopped. {kept}{state}", remedy)


def _kept_whole(job: Job, error: BaseException) -> str:
    """What was kept after memory ran out."""
    try:
        return oom.keep_whole(job, error)
    except (NotFinite, WriteFailed, RuntimeError, MemoryError) as failed:
        # the first error is what the person has to know of
        log.warning("The last step could not be saved: %s", failed)
        return "The last step could not be saved; the state of the last save is kept."


def _short(run: Run, path: Path) -> str:
    return path.relative_to(run.path).as_posix()
