"""Defines how a run stands at one moment, and says it in one sentence; `backend.runs.status_reader` works it out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from backend.base.jsonable import jsonable
from backend.runs.eta import spoken

State = Literal["starting", "running", "stopping", "done", "stopped", "failed", "dead"]
ACTIVE: frozenset[str] = frozenset({"starting", "running", "stopping"})

_PHASES = {
    "scan": "Reading the images",
    "cache_latents": "Encoding images",
    "cache_masks": "Reading the masks",
    "cache_text": "Encoding captions",
    "load": "Loading the model",
    "compile": "Compiling",
    "train": "Training",
    "validate": "Measuring the validation loss",
    "picture_losses": "Measuring the loss of each image",
    "sample": "Drawing sample images",
    "save": "Saving",
    "pause": "Waiting while the preview draws",
    "done": "Finishing",
}


@dataclass(frozen=True)
class Failure:
    """What ended a run, for people."""

    text: str
    """What happened."""
    cause: str = ""
    """The likely cause."""
    remedy: str = ""
    """What to change."""
    exception: str | None = None
    """The error as Python wrote it."""
    kind: str = ""
    """As `backend.runs.diagnose.Diagnosis.kind`; "" where it is not known."""


@dataclass(frozen=True)
class RunStatus:
    """How a run stands at one moment."""

    name: str
    path: Path
    state: State
    """``dead`` is a run whose process is gone and did not write how it ended."""
    text: str = ""
    """One sentence about all this."""
    phase: str | None = None
    """What it is at; None where unknown."""
    done: int | None = None
    """How far the phase is; in ``train`` in steps."""
    total: int | None = None
    """How much the phase has to do."""
    step: int = 0
    """Optimizer steps, counted from the first start on."""
    total_steps: int | None = None
    eta_s: float | None = None
    """Seconds to the end of training, in the phases before it to the end of the phase; None while unknown."""
    s_per_step: float | None = None
    """Recent median in seconds."""
    elapsed_s: float | None = None
    """Seconds that the newest process has taken so far."""
    started: float | None = None
    """Unix seconds at which the newest process started."""
    ended: float | None = None
    """Unix seconds at which the newest process ended."""
    pid: int | None = None
    generation: int = 0
    exit_code: int | None = None
    error: Failure | None = None
    warnings: tuple[dict[str, str], ...] = ()
    """The newest ones, each with ``text`` and ``remedy``."""
    resumable: bool = False
    """A whole state is on the disk to resume from."""
    state_step: int | None = None
    """The step of that state."""
    result: dict = field(default_factory=dict)
    host: str | None = None
    """The other machine on which it is trained; None for this one."""
    hang: Failure | None = None
    """Why a live trainer seems to hang, and what to do; None while it gives signs."""

    @property
    def active(self) -> bool:
        """True while a process works on it."""
        return self.state in ACTIVE

    def to_dict(self) -> dict:
        """Plain JSON values, ``active`` included."""
        values = jsonable(asdict(self) | {"active": self.active})
        assert isinstance(values, dict)
        return values


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
    if status.state == "done":
        early = f"{status.step} of {status.total_steps} steps (early stop)"
        length = early if status.result.get("early_stop") else f"{status.step} steps"
        return f"Done: {length} in {spoken(status.elapsed_s)}." if status.elapsed_s is not None else f"Done: {length}."
    again = " It can be resumed."
    if status.state_step is not None:
        again = f" It can be resumed from step {status.state_step}."
    resume = again if status.resumable else ""
    if status.state == "stopped":
        return f"Stopped at {at}.{resume}"
    why = f" {status.error.text}" if status.error else ""
    return f"Failed at {at}.{why}{resume}" if status.state == "failed" else f"Ended at {at}.{why}{resume}"
