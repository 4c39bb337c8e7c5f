"""How a run stands: derived from its folder and its live process, never from anybody's memory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from backend.base.jsonable import jsonable
from backend.runs.control import Control
from backend.runs.diagnose import diagnose
from backend.runs.eta import RECENT, TIMING, step_seconds
from backend.runs.events import read_events
from backend.runs.folder import FINAL, Run
from backend.runs.logs import tail_log
from backend.runs.metrics import MetricsReader
from backend.runs.place import START_GRACE_S, is_being_started, is_here
from backend.runs.process import ProcessId
from backend.runs.record import number
from backend.runs.silence import Silence
from backend.runs.state_folder import newest_state, state_step
from backend.runs.status_text import with_text

State = Literal["starting", "running", "stopping", "done", "stopped", "failed", "dead"]
ACTIVE: frozenset[str] = frozenset({"starting", "running", "stopping"})

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
    seconds of the newest process. elapsed_s: its seconds so far. text: one sentence. resumable: there is a whole state
    on the disk to go on from; state_step says from which step. host: the other machine that it is trained on, None for
    this one. hang: why a live trainer is taken to be stuck, and what to do; None while it gives signs.
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
    host: str | None = None
    hang: Failure | None = None

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
    end: Literal["done", "stopped"] | None = None
    error: Failure | None = None
    warnings: list[dict] = field(default_factory=list)

    def take(self, event: dict) -> None:
        kind = event["kind"]
        if kind == "phase":
            phase = event.get("phase")
            self.phase = phase if isinstance(phase, str) else None
            self.done, self.total = _whole(event.get("done")), _whole(event.get("total"))
            self.eta_s = number(event, "eta_s") if event.get("eta_s") is not None else None
        elif kind == "step_total":
            self.total_steps = _whole(event.get("total"))
        elif kind == "warning":
            self.warnings.append({name: str(event.get(name) or "") for name in ("text", "remedy")})
        elif kind == "error":
            self.error = _failure(event)
        elif kind in ("done", "stopped"):
            self.end = kind


class StatusReader:
    """Reads a run's status again and again at little cost: of the events only what is new."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.last_row: dict[str, float | int | None] | None = None
        """The newest row of metrics at the last `read`."""
        self.final = False
        """Whether the end was written down at the last `read`: nothing changes without the record then."""
        self._metrics = MetricsReader(run)
        self._silence = Silence(run)
        self._begun: object = None
        self._offset = 0
        self._told = _Told()
        self._diagnosed: tuple[object, Failure] | None = None

    def read(self) -> RunStatus:
        """The status now."""
        record = self.run.record()
        # Asked before the files are read: whatever a process wrote before it ended is then seen.
        alive = self.run.is_alive(record)
        if not alive:
            before, record = record, self.run.record()  # it may have written its end between the two looks
            # or it is another process, that was not in the record yet
            alive = record.get("pid") != before.get("pid") and self.run.is_alive(record)
        process, here = ProcessId.from_record(record), is_here(record)
        self._follow(record)
        rows = self._metrics.tail(RECENT + 10, TIMING)
        self.last_row = self._metrics.last() if rows else None
        state = self._state(record, alive, bool(rows))
        self.final = record.get("state") in FINAL
        error = self._error(record, state)
        if state == "dead" and record.get("state") != "dead" and error is not None and error.exception:
            state = "failed"  # nobody saw its exit code, but its last words are in the log
        saved = state_step(self.run.state_dir)
        step = self._step(record, rows, state, saved)
        seconds = step_seconds(rows, int(number(record, "generation_step")))
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
            started=number(record, "started") or None,
            ended=number(record, "ended") or None,
            pid=process.pid if process is not None and alive else None,
            generation=int(number(record, "generation")),
            exit_code=_whole(record.get("exit_code")),
            error=error,
            warnings=tuple(told.warnings[-20:]),
            resumable=state not in ACTIVE and state != "done" and newest_state(self.run.state_dir) is not None,
            state_step=saved,
            result=_dict(record.get("result")),
            host=None if here else str(record["host"]),
            hang=self._hang(state, alive, process if here else None, seconds),
        )
        return with_text(status)

    def _hang(self, state: State, alive: bool, process: ProcessId | None, seconds: float | None) -> Failure | None:
        if not alive or state not in ACTIVE:
            return None
        told = self._silence.sentence(process, self._told.phase, seconds)
        return None if told is None else Failure(told[0], remedy=told[1])

    def _follow(self, record: dict) -> None:
        begun = (record.get("started"), record.get("events_offset"))
        if begun != self._begun:
            self._begun, self._offset = begun, max(0, int(number(record, "events_offset")))
            self._told = self._inherited(self._offset)
            self._diagnosed = None
        events, self._offset = read_events(self.run.events_path, self._offset)
        for event in events:
            self._told.take(event)

    def _inherited(self, until: int) -> _Told:
        """What still holds of the processes before this one: the length of the run."""
        before = _Told()
        for event in read_events(self.run.events_path, 0, until)[0]:
            if event["kind"] == "step_total":
                before.take(event)
        return before

    def _state(self, record: dict, alive: bool, has_rows: bool) -> State:
        final = record.get("state")
        if isinstance(final, str) and final in FINAL:
            return final  # type: ignore[return-value]
        if alive:
            if record.get("stop_asked") or "stop" in Control(self.run).pending():
                return "stopping"
            return "running" if self._told.phase is not None or has_rows else "starting"
        if record.get("pid") is None and "exit_code" not in record and self._told.end is None:
            since = number(record, "started") or number(record, "created")
            recent = 0 <= time.time() - since < START_GRACE_S
            # Who said that it starts it may be gone, and then nobody does; an older version did not say who.
            return "starting" if recent and ("starter" not in record or is_being_started(record)) else "dead"
        if record.get("stop_rung"):
            return "stopped"
        if self._told.end is not None:
            return self._told.end
        if self._told.error is not None:
            return "failed"
        return "failed" if record.get("exit_code") else "dead"

    def _step(self, record: dict, rows: list[dict], state: State, saved: int | None) -> int:
        # A resumed run stands where its state was saved, also before it has made a step or a row of its own.
        last = _whole(rows[-1]["step"]) if rows else saved
        finished = _whole(_dict(record.get("result")).get("step")) if state in FINAL else None
        return (finished if finished is not None else last) or 0

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
            if not is_here(record):
                return Failure(
                    f"There is no sign of the trainer on {record['host']} any more.",
                    "That machine or container was switched off, or this folder is no longer connected to it.",
                    "Look there first. If it has ended, resume the run here.",
                )
            tail = tail_log(self.run.log_path, lines=400, since=max(0, int(number(record, "log_offset"))))
            found = diagnose(tail, _whole(record.get("exit_code")))
            self._diagnosed = (key, Failure(found.text, found.cause, found.remedy, found.exception))
        return self._diagnosed[1]


def statuses(runs: list[Run]) -> list[RunStatus]:
    """The status of each run; one whose folder can't be read shows as dead with the reason."""
    found = []
    for run in runs:
        try:
            found.append(run.status())
        except Exception as error:  # noqa: BLE001 - one odd folder must not hide the others
            found.append(unreadable(run, error))
    return found


def unreadable(run: Run, error: Exception) -> RunStatus:
    """The status of a run whose files are not what a trainer writes."""
    remedy = "Look into the folder, or move it away."
    what = Failure(f"The files of this run can't be understood: {error}.", "They were edited or damaged.", remedy)
    return with_text(RunStatus(run.name, run.path, "dead", error=what))


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
    started, until = number(record, "started"), time.time() if active else number(record, "ended")
    return max(0.0, until - started) if started and until else None


def _failure(fields: dict) -> Failure:
    return Failure(
        str(fields.get("text") or "The trainer stopped with an error."),
        str(fields.get("cause") or ""),
        str(fields.get("remedy") or ""),
        str(fields["exception"]) if fields.get("exception") else None,
    )


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
