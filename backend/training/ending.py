"""Trains a run to its end, and says how it ended: done, stopped, or failed with what was kept."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from backend.base.errors import Failed
from backend.runs.events import EventWriter
from backend.runs.events.kinds import WarningEvent, to_fields
from backend.runs.folder import Run
from backend.training import oom
from backend.training.expected_memory import compare_with_peak
from backend.training.loop import Ending, train
from backend.training.ranks.others import OtherEnded
from backend.training.requests import StopRequested
from backend.training.rescue import ended, keep, keep_good, survived
from backend.training.step_log import NotFinite
from backend.training.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a run ended, as its events and its record have it."""

    state: Ending
    fields: dict[str, Any]


def train_to_end(run: Run, trainer: Trainer, events: EventWriter) -> End:
    """Train to the last step or a stop, and return how it ended.

    Failed, after LoRA and state of the last whole step were kept, whatever ended the training; where loss or gradients
    are lost, the last good LoRA is kept. An error before the first step is passed on as it is.
    """
    before = trainer.position.step
    try:
        ending = _train(trainer, events)
    finally:
        peak = partial(compare_with_peak, events, trainer.expected, trainer.monitor.meter)
        memory = survived("Writing down the memory that was used", peak, {})
    trainer.count_time()
    position = trainer.position
    if ending == "stopped":
        log.info("Stopped at step %d; resume continues from there.", position.step)
        return End(state="stopped", fields={"step": position.step})
    survived("Comparing the compiled graphs with the plan", trainer.monitor.end, None)
    if before and before >= trainer.total_steps:
        _warn_of_no_step(run, trainer, events)
    log.info("Done: %d steps in %.0f s, %s", position.step, position.seconds, trainer.saver.final)
    result = {
        "step": position.step,
        "lora": str(trainer.saver.final),
        "seconds": round(position.seconds, 2),
        "loss": trainer.step_log.last_loss,
        "loss_smooth": position.loss_smooth,
        "validation": trainer.between_steps.losses,
        "memory": memory,
    }
    between_steps = trainer.between_steps
    if between_steps.follow_up is not None:
        result |= between_steps.follow_up.result()
    if between_steps.average is not None:
        result["average"] = to_fields(between_steps.average)
    return End(state="done", fields=result)


def _train(trainer: Trainer, events: EventWriter) -> Ending:
    try:
        return train(trainer)
    except StopRequested:
        raise
    except NotFinite as lost:
        raise _without_numbers(trainer, lost) from lost
    except (Exception, SystemExit) as error:
        own = isinstance(error, RuntimeError | MemoryError | OSError) and not isinstance(error, OtherEnded)
        if own and oom.is_out_of_memory(error):
            kept = partial(keep, trainer, error)
            raise oom.explanation(error, events, trainer.expected, trainer.shape_words(), kept) from error
        if trainer.position.is_start:
            raise
        raise ended(trainer, error) from error


def _without_numbers(trainer: Trainer, lost: NotFinite) -> Failed:
    """Keep the file of the last step whose numbers were finite, and say all this."""
    remedy = (
        f"Start again from it ({trainer.saver.files.again}) with a lower learning rate, a longer warm-up, or bf16 "
        "instead of fp16."
    )
    stopped = "Training was stopped."
    return Failed(f"{lost} {stopped} {keep_good(trainer)}", remedy)


def _warn_of_no_step(run: Run, trainer: Trainer, events: EventWriter) -> None:
    """A resume that had no step to do says so: "done" alone looks like a training."""
    done, length = trainer.position.step, trainer.total_steps
    text = f"Nothing was trained: the run has done {done} steps already, and its length is {length} steps."
    remedy = f"To train longer: launcher.py resume {run.name} --steps N, with a larger N."
    events.write(WarningEvent(text=text, remedy=remedy))
    log.warning("%s %s", text, remedy)
