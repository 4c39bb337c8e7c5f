"""Works out how a run stands from its folder and its live process, and from nothing that is kept elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from backend.runs import record
from backend.runs.control import Control
from backend.runs.diagnose import diagnose
from backend.runs.eta import RECENT, TIMING, step_seconds
from backend.runs.events import read_events
from backend.runs.events.kinds import (
    DoneEvent,
    ErrorEvent,
    Event,
    PhaseEvent,
    StepTotalEvent,
    StoppedEvent,
    WarningEvent,
)
from backend.runs.hang import HangDetector
from backend.runs.liveness import START_GRACE_S, is_alive, is_being_started, is_here
from backend.runs.logs import tail_log
from backend.runs.metrics import MetricsReader
from backend.runs.paths import RunPaths
from backend.runs.process import ProcessId
from backend.runs.record import FINAL, number
from backend.runs.state_folder import newest_state, state_step
from backend.runs.status import ACTIVE, Failure, RunStatus, State, with_text

# Phases inside of training: what they count is not what is left of the run.
_WITHIN_TRAINING = {"train", "validate", "picture_losses", "sample", "save", "pause", "done", "compile"}


@dataclass
class _Summary:
    """What the events of the present process add up to."""

    phase: str | None = None
    done: int | None = None
    total: int | None = None
    eta_s: float | None = None
    total_steps: int | None = None
    end: Literal["done", "stopped"] | None = None
    error: Failure | None = None
    warnings: list[dict[str, str]] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case PhaseEvent():
                self.phase, self.done, self.total, self.eta_s = event.phase, event.done, event.total, event.eta_s
            case StepTotalEvent():
                self.total_steps = event.total
            case WarningEvent():
                self.warnings.append({"text": event.text, "remedy": event.remedy})
            case ErrorEvent():
                self.error = _failure(event.text, event.cause, event.remedy, event.exception, event.error_kind)
            case DoneEvent():
                self.end = "done"
            case StoppedEvent():
                self.end = "stopped"


class StatusReader:
    """Reads a run's status again and again at little cost: of the events only what is new."""

    def __init__(self, run: RunPaths) -> None:
        self.run = run
        self.last_row: dict[str, float | int | None] | None = None
        """The newest row of metrics at the last `read`."""
        self.final = False
        """Whether the end was written down at the last `read`: nothing changes without the record then."""
        self._metrics = MetricsReader(run)
        self._hang_detector = HangDetector(run)
        self._begun: object = None
        self._offset = 0
        self._summary = _Summary()
        self._diagnosed: tuple[object, Failure] | None = None

    def read(self) -> RunStatus:
        """The status now."""
        current = record.read(self.run.record_path)
        # Asked before the files are read: whatever a process wrote before it ended is then seen.
        alive = is_alive(current, self.run.alive_path)
        if not alive:
            # Between the two looks it may have written its end, or another process may have taken over.
            before, current = current, record.read(self.run.record_path)
            alive = current.get("pid") != before.get("pid") and is_alive(current, self.run.alive_path)
        process, here = ProcessId.from_record(current), is_here(current)
        self._follow(current)
        rows = self._metrics.tail(RECENT + 10, TIMING)
        self.last_row = self._metrics.last() if rows else None
        state = self._state(current, alive, bool(rows))
        self.final = current.get("state") in FINAL
        error = self._error(current, state)
        if state == "dead" and current.get("state") != "dead" and error is not None and error.exception:
            state = "failed"  # nobody saw its exit code, but its last words are in the log
        saved = state_step(self.run.state_dir)
        step = self._step(current, rows, state, saved)
        seconds = step_seconds(rows, int(number(current, "generation_step")))
        summary = self._summary
        training = summary.phase in _WITHIN_TRAINING
        total_steps = summary.total_steps or _whole(current.get("total_steps"))
        in_steps = summary.phase == "train"
        result = _dict(current.get("result"))
        at_end = state == "done" and not result.get("early_stop")
        status = RunStatus(
            name=self.run.name,
            path=self.run.path,
            state=state,
            phase=summary.phase,
            done=step if in_steps else summary.done,
            total=total_steps if in_steps else summary.total,
            step=step,
            total_steps=total_steps,
            eta_s=_eta(state, training, seconds, step, total_steps, summary.eta_s),
            s_per_step=seconds,
            elapsed_s=_elapsed(current, state in ACTIVE),
            started=number(current, "started") or None,
            ended=number(current, "ended") or None,
            pid=process.pid if process is not None and alive else None,
            generation=int(number(current, "generation")),
            exit_code=_whole(current.get("exit_code")),
            error=error,
            warnings=tuple(summary.warnings[-20:]),
            resumable=state not in ACTIVE and not at_end and newest_state(self.run.state_dir) is not None,
            state_step=saved,
            result=result,
            host=None if here else str(current["host"]),
            hang=self._hang(state, alive, process if here else None, seconds),
        )
        return with_text(status)

    def _hang(self, state: State, alive: bool, process: ProcessId | None, seconds: float | None) -> Failure | None:
        if not alive or state not in ACTIVE:
            return None
        problem = self._hang_detector.sentence(process, self._summary.phase, seconds)
        return None if problem is None else Failure(problem[0], remedy=problem[1])

    def _follow(self, current: dict) -> None:
        begun = (current.get("started"), current.get("events_offset"))
        if begun != self._begun:
            self._begun, self._offset = begun, max(0, int(number(current, "events_offset")))
            self._summary = self._inherited(self._offset)
            self._diagnosed = None
        events, self._offset = read_events(self.run.events_path, self._offset)
        for event in events:
            self._summary.add(event)

    def _inherited(self, until: int) -> _Summary:
        """What still holds of the processes before this one: the length of the run."""
        before = _Summary()
        for event in read_events(self.run.events_path, 0, until)[0]:
            if isinstance(event, StepTotalEvent):
                before.add(event)
        return before

    def _state(self, current: dict, alive: bool, has_rows: bool) -> State:
        final = current.get("state")
        if isinstance(final, str) and final in FINAL:
            return final  # type: ignore[return-value]
        if alive:
            if current.get("stop_asked") or "stop" in Control(self.run).pending():
                return "stopping"
            return "running" if self._summary.phase is not None or has_rows else "starting"
        if current.get("pid") is None and "exit_code" not in current and self._summary.end is None:
            since = number(current, "started") or number(current, "created")
            recent = 0 <= time.time() - since < START_GRACE_S
            # Who said that it starts it may be gone, and then nobody does; an older version did not say who.
            return "starting" if recent and ("starter" not in current or is_being_started(current)) else "dead"
        if current.get("stop_rung"):
            return "stopped"
        if self._summary.end is not None:
            return self._summary.end
        if self._summary.error is not None:
            return "failed"
        return "failed" if current.get("exit_code") else "dead"

    def _step(self, current: dict, rows: list[dict], state: State, saved: int | None) -> int:
        # A resumed run stands where its state was saved, also before it has made a step or a row of its own.
        last = _whole(rows[-1]["step"]) if rows else saved
        finished = _whole(_dict(current.get("result")).get("step")) if state in FINAL else None
        return (finished if finished is not None else last) or 0

    def _error(self, current: dict, state: State) -> Failure | None:
        if state not in ("failed", "dead"):
            return None
        if isinstance(current.get("error"), dict):
            return _failure_of(current["error"])
        if self._summary.error is not None:
            return self._summary.error
        if current.get("started") is None:
            return Failure(
                "This run was never started.",
                "The program that created it ended first.",
                "Start it again from its settings.",
            )
        key = (self._begun, current.get("exit_code"))
        if self._diagnosed is None or self._diagnosed[0] != key:
            if not is_here(current):
                return Failure(
                    f"The trainer on {current['host']} gives no sign any more.",
                    "That machine or container was switched off, or this folder is no longer connected to it.",
                    "Look there first. If it has ended, resume the run here.",
                )
            tail = tail_log(self.run.log_path, lines=400, since=max(0, int(number(current, "log_offset"))))
            diagnosis = diagnose(tail, _whole(current.get("exit_code")))
            why = Failure(diagnosis.text, diagnosis.cause, diagnosis.remedy, diagnosis.exception, diagnosis.kind)
            self._diagnosed = (key, why)
        return self._diagnosed[1]


def statuses(runs: Iterable[RunPaths]) -> list[RunStatus]:
    """The status of each run; one whose folder can't be read shows as dead with the reason."""
    listed = []
    for run in runs:
        try:
            listed.append(StatusReader(run).read())
        except Exception as error:  # noqa: BLE001 - one odd folder must not hide the others
            listed.append(unreadable(run, error))
    return listed


def unreadable(run: RunPaths, error: Exception) -> RunStatus:
    """The status of a run whose files are not what a trainer writes."""
    remedy = "Look into the folder, or move it to another place."
    what = Failure(f"The files of this run can't be read: {error}.", "They were edited or damaged.", remedy)
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


def _elapsed(current: dict, active: bool) -> float | None:
    started, until = number(current, "started"), time.time() if active else number(current, "ended")
    return max(0.0, until - started) if started and until else None


def _failure_of(fields: dict) -> Failure:
    """Out of a record, which somebody may have edited."""
    text, cause, remedy, exception, kind = (
        str(fields.get(name) or "") for name in ("text", "cause", "remedy", "exception", "kind")
    )
    return _failure(text, cause, remedy, exception, kind)


def _failure(text: str, cause: str, remedy: str, exception: str | None, kind: str | None) -> Failure:
    return Failure(text or "The trainer stopped with an error.", cause, remedy, exception or None, kind or "")


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
