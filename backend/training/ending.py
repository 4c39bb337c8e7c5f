"""Writes down how a run ended: done, stopped, or failed with what was kept."""

from __future__ import annotations

import logging
from functools import partial

from backend.base.errors import Failed
from backend.runs.events import EventWriter
from backend.runs.events.kinds import DoneEvent, StoppedEvent, WarningEvent
from backend.runs.folder import Run
from backend.training import oom
from backend.training.expected_memory import hold_against_peak
from backend.training.job import Job
from backend.training.loop import Ending, train
from backend.training.requests import StopAsked
from backend.training.rescue import ended, keep, keep_good, survived
from backend.training.run_record import finish
from backend.training.step_log import NotFinite

log = logging.getLogger(__name__)


def train_to_end(run: Run, job: Job, events: EventWriter) -> None:
    """Train and write the end into events and record.

    Failed, after LoRA and state of the last whole step were kept, whatever ended the training; where loss or gradients
    are lost, the last good LoRA is kept. An error before the first step is passed on as it is.
    """
    before = job.position.step
    try:
        ending = _trained(job, events)
    finally:
        peak = partial(hold_against_peak, events, job.expected, job.watch.meter)
        memory = survived("Writing down the memory that was used", peak, {})
    job.count_time()
    position = job.position
    if ending == "stopped":
        events.write(StoppedEvent(step=position.step))
        finish(run, "stopped", step=position.step)
        log.info("Stopped at step %d; resume continues from there.", position.step)
        return
    survived("Comparing the compiled graphs with the plan", job.watch.end, None)
    if before and before >= job.total_steps:
        _tell_nothing_was_left(run, job, events)
    result = {
        "step": position.step,
        "lora": str(job.saver.final),
        "seconds": round(position.seconds, 2),
        "loss": job.records.last_loss,
        "loss_smooth": position.smooth / position.smooth_weight if position.smooth_weight else None,
        "validation": job.duties.measured,
        "memory": memory,
    }
    events.write(DoneEvent(**result))
    finish(run, "done", **result)
    log.info("Done: %d steps in %.0f s, %s", position.step, position.seconds, job.saver.final)


def _trained(job: Job, events: EventWriter) -> Ending:
    try:
        return train(job)
    except StopAsked:
        raise
    except NotFinite as lost:
        raise _without_numbers(job, lost) from lost
    except (Exception, SystemExit) as error:
        if isinstance(error, RuntimeError | MemoryError | OSError) and oom.is_out_of_memory(error):
            raise oom.told(error, events, job.expected, job.shape_words(), partial(keep, job, error)) from error
        if not job.position.step and not job.position.micro:
            raise
        raise ended(job, error) from error


def _without_numbers(job: Job, lost: NotFinite) -> Failed:
    """Keep the LoRA of the last step whose numbers were finite, and say all this."""
    remedy = (
        "Start again from it (network_weights) with a lower learning rate, a longer warm-up, or bf16 instead of fp16."
    )
    return Failed(f"{lost} Training was stopped. {keep_good(job)}", remedy)


def _tell_nothing_was_left(run: Run, job: Job, events: EventWriter) -> None:
    """A resume that had no step to do says so: "done" alone looks like a training."""
    done, length = job.position.step, job.total_steps
    text = f"Nothing was trained: the run has done {done} steps already, and its length is {length} steps."
    remedy = f"To train longer: launcher.py train --resume {run.name} --max_train_steps N, with a larger N."
    events.write(WarningEvent(text=text, remedy=remedy))
    log.warning("%s %s", text, remedy)
