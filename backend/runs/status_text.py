"""Says in one sentence how a run stands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from backend.runs.eta import spoken

if TYPE_CHECKING:
    from backend.runs.status import RunStatus

_PHASES = {
    "scan": "Reading the images",
    "cache_latents": "Encoding images",
    "cache_text": "Encoding captions",
    "load": "Loading the model",
    "compile": "Compiling",
    "train": "Training",
    "validate": "Measuring the validation loss",
    "sample": "Drawing sample images",
    "save": "Saving",
    "done": "Finishing",
}


def with_text(status: RunStatus) -> RunStatus:
    """The status with its `text`."""
    return replace(status, text=_sentence(status))


def _sentence(status: RunStatus) -> str:
    at = f"step {status.step}" + (f" of {status.total_steps}" if status.total_steps else "")
    if status.state == "starting":
        return "Starting."
    if status.state == "running":
        what = _PHASES.get(status.phase or "", "Training")
        if status.phase == "train":
            count = f": {at}"
        else:
            count = f": {status.done} of {status.total}" if status.total else ""
        left = f", about {spoken(status.eta_s)} left" if status.eta_s is not None else ""
        quiet = f" {status.hang.text}" if status.hang is not None else ""
        return f"{what}{count}{left}.{quiet}"
    if status.state == "stopping":
        quiet = f" {status.hang.text}" if status.hang is not None else ""
        return f"Stopping at {at}; the trainer saves first.{quiet}"
    took = f" in {spoken(status.elapsed_s)}" if status.elapsed_s is not None else ""
    if status.state == "done":
        return f"Done: {status.step} steps{took}."
    again = " It can be resumed" + (f" from step {status.state_step}." if status.state_step is not None else ".")
    resume = again if status.resumable else ""
    if status.state == "stopped":
        return f"Stopped at {at}.{resume}"
    why = f" {status.error.text}" if status.error else ""
    return f"{'Failed' if status.state == 'failed' else 'Ended'} at {at}.{why}{resume}"
