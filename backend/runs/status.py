"""How a run stands: derived from its folder and its live process, never from anybody's memory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from backend.base.jsonable import jsonable
from backend.runs.control import Control
from backend.runs.diagnose import diagnose
from backend.runs.errors import RunError
from backend.runs.eta import RECENT, spoken, step_seconds
from backend.runs.events import read_events
from backend.runs.folder import FINAL, Run
from backend.runs.logs import tail_log
from backend.runs.metrics import MetricsReader
from backend.runs.process import ProcessId

State = Literal["starting", "running", "stopping", "done", "stopped", "failed", "dead"]
ACTIVE: frozenset[str] = frozenset({"starting", "running", "stopping"})

# Between a folder and its process, and between a process and its pid in the record, lie moments.
_START_GRACE_S = 30.0
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
# Phases inside of training: what they count is not what is left of the run.
_WITHIN_TRAINING = {"train", "validate", "sample", "save", "done", "compile"}


@dataclass(frozen=True)
class Failure:
    """What ended a run, for people: what happened, the likely cause, what to change, and Python's own words."""

    text: str
    cause: str = ""
    remedy: str = ""
    exception: str | None = None


@dataclass(frozen=True)
class RunStatus:
    """How a run stands at one moment.

    state: ``starting``, ``running``, ``stopping``, ``done``, ``stopped``, ``failed``, or ``dead`` (gone without a
    word). phase, done, total: what it is at, and how far; None where unknown. In ``train`` they are the steps.
    step, total_steps: optimizer steps, counted from the first start on. eta_s: seconds to the end of training, in the
    phases before it to the end of the phase; None while unknown. s_per_step: recent median. started, ended: unix
    seconds of the newest process. elapsed_s: its seconds so far. text: one sentence. resumable: there is a state to go
    on from; state_step says from which step (None when not told).
    """

    name: str
    path: Path
    state: State
    text: str = ""
    phase: str | None = None
    done: int | None = None
    total: int | None = None
    step: int = 0
    total_steps: int | None = None
    eta_s: float | None = None
    s_per_step: float | None = None
    elapsed_s: float | None = None
    started: float | None = None
    ended: float | None = None
    pid: int | None = None
    generation: int = 0
    exit_code: int | None = None
    error: Failure | None = None
    warnings: tuple[dict, ...] = ()
    resumable: bool = False
    state_step: int | None = None
    result: dict = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """True while a process works on it."""
        return self.state in ACTIVE

    def to_dict(self) -> dict:
        """Plain JSON values, ``active`` included."""
        values = jsonable(asdict(self) | {"active": self.active})
        assert isinstance(values, dict)
        return values


@dataclass
class _Told:
    """What the events of the present process add up to."""

    phase: str | None = None
    done: int | None = None
    total: int | None = None
    eta_s: float | None = None
    total_steps: int | None = None
    state_step: int | None = None
    end: Literal["done", "stopped"] | None = None
    error: Failure | None = None
    warnings: list[dict] = field(default_factory=list)

    def take(self, event: dict) -> None:
        kind = event["kind"]
        if kind == "phase":
            self.phase, self.done, self.total = event.get("phase"), event.get("done"), event.get("total")
            self.eta_s = event.get("eta_s")
        elif kind == "step_total":
            self.total_steps = event.get("total")
        elif kind == "state":
            self.state_step = event.get("step")
        elif kind == "warning":
            self.warnings.append({"text": event.get("text", ""), "remedy": event.get("remedy", "")})
        elif kind == "error":
            self.error = _failure(event)
        elif kind in ("done", "stopped"):
            self.end = kind


class StatusReader:
    """Reads a run's status again and again at little cost: of the events only what is new."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._metrics = MetricsReader(run)
        self._begun: object = None
        self._offset = 0
        self._told = _Told()
        self._diagnosed: tuple[object, Failure] | None = None

    def read(self) -> RunStatus:
        """The status now."""
        record = self.run.record()
        process = ProcessId.from_record(record)
        # Asked before the files are read: whatever a process wrote before it ended is then seen.
        alive = process is not None and process.is_alive()
        if not alive:
            record = self.run.record()  # it may have written its end between the two looks
        self._follow(record)
        rows = self._metrics.tail(RECENT + 10)
        state = self._state(record, alive, bool(rows))
        error = self._error(record, state)
        if state == "dead" and record.get("state") != "dead" and error is not None and error.exception:
            state = "failed"  # nobody saw its exit code, but its last words are in the log
        step = self._step(record, rows, state)
        seconds = step_seconds(rows, int(record.get("generation_step") or 0))
        told = self._told
        training = told.phase in _WITHIN_TRAINING
        total_steps = told.total_steps or _whole(record.get("total_steps"))
        in_steps = told.phase == "train"
        status = RunStatus(
            name=self.run.name,
            path=self.run.path,
            state=state,
            phase=told.phase,
            done=step if in_steps else told.done,
            total=total_steps if in_steps else told.total,
            step=step,
            total_steps=total_steps,
            eta_s=_eta(state, training, seconds, step, total_steps, told.eta_s),
            s_per_step=seconds,
            elapsed_s=_elapsed(record, state in ACTIVE),
            started=record.get("started"),
            ended=record.get("ended"),
            pid=process.pid if process is not None and alive else None,
            generation=int(record.get("generation") or 0),
            exit_code=record.get("exit_code"),
            error=error,
            warnings=tuple(told.warnings[-20:]),
            resumable=state not in ACTIVE and state != "done" and self.run.has_state(),
            state_step=told.state_step,
            result=record.get("result") or {},
        )
        return _with_text(status)

    def _follow(self, record: dict) -> None:
        begun = (record.get("started"), record.get("events_offset"))
        if begun != self._begun:
            self._begun, self._offset = begun, int(record.get("events_offset") or 0)
            self._told = self._inherited(self._offset)
            self._diagnosed = None
        events, self._offset = read_events(self.run.events_path, self._offset)
        for event in events:
            self._told.take(event)

    def _inherited(self, until: int) -> _Told:
        """What still holds of the processes before this one: the saved state and the length of the run."""
        before = _Told()
        for event in read_events(self.run.events_path, 0, until)[0]:
            if event["kind"] in ("state", "step_total"):
                before.take(event)
        return before

    def _state(self, record: dict, alive: bool, has_rows: bool) -> State:
        final = record.get("state")
        if final in FINAL:
            return final
        if alive:
            if record.get("stop_asked") or "stop" in Control(self.run).pending():
                return "stopping"
            return "running" if self._told.phase is not None or has_rows else "starting"
        if record.get("pid") is None and "exit_code" not in record and self._told.end is None:
            since = record.get("started") or record.get("created") or 0
            return "starting" if 0 <= time.time() - since < _START_GRACE_S else "dead"
        if record.get("stop_rung"):
            return "stopped"
        if self._told.end is not None:
            return self._told.end
        if self._told.error is not None:
            return "failed"
        return "failed" if record.get("exit_code") else "dead"

    def _step(self, record: dict, rows: list[dict], state: State) -> int:
        last = rows[-1]["step"] if rows else 0
        finished = (record.get("result") or {}).get("step") if state in FINAL else None
        return int(finished if isinstance(finished, int) else last)

    def _error(self, record: dict, state: State) -> Failure | None:
        if state not in ("failed", "dead"):
            return None
        if isinstance(record.get("error"), dict):
            return _failure(record["error"])
        if self._told.error is not None:
            return self._told.error
        if record.get("started") is None:
            return Failure(
                "This run was never started.",
                "The program that made it ended first.",
                "Start it again from its settings.",
            )
        key = (self._begun, record.get("exit_code"))
        if self._diagnosed is None or self._diagnosed[0] != key:
            tail = tail_log(self.run.log_path, lines=400, since=int(record.get("log_offset") or 0))
            found = diagnose(tail, record.get("exit_code"))
            self._diagnosed = (key, Failure(found.text, found.cause, found.remedy, found.exception))
        return self._diagnosed[1]


def statuses(runs: list[Run]) -> list[RunStatus]:
    """The status of each run; one whose folder can't be read shows as dead with the reason."""
    found = []
    for run in runs:
        try:
            found.append(run.status())
        except (OSError, RunError) as error:
            found.append(_with_text(RunStatus(run.name, run.path, "dead", error=Failure(str(error)))))
    return found


def _eta(
    state: State, training: bool, seconds: float | None, step: int, total: int | None, phase_eta: float | None
) -> float | None:
    if state != "running":
        return None
    # Samples before the first step have a time of their own; no step has one yet.
    if not training or seconds is None:
        return phase_eta
    return (total - step) * seconds if total is not None and step <= total else None


def _elapsed(record: dict, active: bool) -> float | None:
    started = record.get("started")
    if not isinstance(started, int | float):
        return None
    until = time.time() if active else record.get("ended")
    return max(0.0, until - started) if isinstance(until, int | float) else None


def _failure(fields: dict) -> Failure:
    return Failure(
        str(fields.get("text") or "The trainer stopped with an error."),
        str(fields.get("cause") or ""),
        str(fields.get("remedy") or ""),
        fields.get("exception"),
    )


def _with_text(status: RunStatus) -> RunStatus:
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
        return f"{what}{count}{left}."
    if status.state == "stopping":
        return f"Stopping at {at}; the trainer saves first."
    took = f" in {spoken(status.elapsed_s)}" if status.elapsed_s is not None else ""
    if status.state == "done":
        return f"Done: {status.step} steps{took}."
    again = " It can be resumed" + (f" from step {status.state_step}." if status.state_step is not None else ".")
    resume = again if status.resumable else ""
    if status.state == "stopped":
        return f"Stopped at {at}.{resume}"
    why = f" {status.error.text}" if status.error else ""
    return f"{'Failed' if status.state == 'failed' else 'Ended'} at {at}.{why}{resume}"


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
