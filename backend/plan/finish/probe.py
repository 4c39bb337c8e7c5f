"""Measures the pace of a run: trains its settings for some seconds in a process of its own, then removes what it made.

A first process fills the caches of images, captions and compiled blocks, as the run itself would have to; where that
took time, a second one is measured that finds them filled. So nothing of the wait is lost: the run finds them too.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from backend.base.paths import PROJECT_ROOT
from backend.config.schema import Config, with_values
from backend.plan.finish.pace import Pace, probes_folder
from backend.plan.finish.timings import Process, Row, phase_seconds, phases_until, spent_filling, warm_from
from backend.plan.plan import Plan
from backend.runs.control import Control
from backend.runs.errors import RunError
from backend.runs.events import read_events
from backend.runs.events.kinds import AttentionEvent, ErrorEvent, Event, GraphEvent, MemoryPeakEvent, PhaseEvent
from backend.runs.folder import Run, list_runs
from backend.runs.liveness import is_here
from backend.runs.metrics import MetricsReader
from backend.runs.process import WITH_STARTER, ProcessId
from backend.runs.start_lock import announce_probe, one_start
from backend.runs.status import RunStatus
from backend.runs.status_reader import StatusReader
from backend.runs.supervise import trainer_environment

SECONDS = 20.0
"""Time for which steps are measured once nothing is compiled any more."""
_LEAST_STEPS = 8
_SETTLED_S = 5.0
_EVERY_S = 0.2
_PATIENCE_S = 10.0
_ALL_ROWS = 10**6

Progress = Callable[[str, float], object]
"""Takes what a probe is at, and the share of it that is done, 0 to 1."""
Measure = Callable[[Config, Plan, Progress], Pace]
"""`measure`, of a set length."""


class ProbeFailed(RunError):
    """The trainer of a probe ended with an error.

    Attributes:
        kind: of the error, as `backend.runs.diagnose` names it: ``cuda_oom`` and others.
    """

    def __init__(self, text: str, remedy: str, kind: str) -> None:
        super().__init__(text, remedy)
        self.kind = kind


def measure(config: Config, plan: Plan, report: Progress, seconds: float = SECONDS) -> Pace:
    """Train `config` for some seconds and return its pace.

    Raises:
        RunBusy: a run is at work on this machine.
        ProbeFailed: the trainer ended with an error; the message names the cause.
        RunError: it ended before a step was done.
        WriteFailed: the runs' folder can't be written.
    """
    root = probes_folder(config)
    probed = probe_config(config, root)
    work = partial(_train, probed, root, seconds=seconds)
    first = work(report=lambda words, share: report(f"Filling caches. {words}", share), filling=True)
    if not first.filled():
        return pace_of(first, plan)
    second = work(report=lambda words, share: report(f"Measuring. {words}", share), filling=False)
    return replace(pace_of(second, plan), **_compiling(first))


def probe_config(config: Config, root: Path) -> Config:
    """`config` as a probe trains it: nothing is due between its steps, and its files lie in `root`."""
    once: dict[str, Any] = {
        "saving.output_dir": str(root),
        "saving.output_name": "probe",
        "saving.save_every_n_steps": None,
        "saving.save_every_n_epochs": None,
        "saving.keep_best": False,
        "saving.average_checkpoints": None,
        "sampling.sample_every_n_steps": None,
        "sampling.sample_every_n_epochs": None,
        "sampling.sample_at_start": False,
        # of a run that ends before it was timed for long enough; where a probe is stopped nothing is drawn at its end
        "sampling.sample_at_end": bool(config.sampling.prompts),
        "validation.validate_every_n_steps": None,
        "validation.validate_every_n_epochs": None,
        "validation.validate_at_start": _validates(config),
        "validation.validate_at_end": False,
        "validation.early_stop_patience": None,
        "validation.picture_losses": False,
        "logging.tensorboard": False,
        "logging.wandb": False,
    }
    return with_values(config, once)


def _validates(config: Config) -> bool:
    validation = config.validation
    return bool(validation.validation_folders or config.dataset.validation_split or validation.validate_training_images)


def pace_of(process: Process, plan: Plan) -> Pace:
    """What a process says of every run of its settings. RunError where it has too few steps."""
    rows = [row for row in process.rows if row.get("s_per_step") is not None]
    if not rows:
        raise RunError("The probe ended before a step was done.", "Start the run itself; it says what is wrong.")
    warm = rows[warm_from(rows) :]
    groups = _by_group(warm, plan)
    usual = statistics.mean(row["s_per_step"] for row in warm)
    step = _mean_step(groups, plan) if groups else usual
    early = rows[: len(rows) - len(warm)]
    finished = max((event.t for event in process.events if event.kind in ("done", "stopped")), default=process.ended)
    phases = phase_seconds(process.events, process.began, finished)
    first = next((e.t for e in process.events if isinstance(e, PhaseEvent) and e.phase == "train"), process.began)
    compiled = _compiled_in(process.events)
    validation = max(0.0, phases.get("validate", 0.0) - compiled.get("validate", 0.0))
    sample = max(0.0, phases.get("sample", 0.0) - compiled.get("sample", 0.0))
    sample /= max(1, _rounds(process.events, "sample"))
    measured_before = sum(
        took for name, took in phases_until(process.events, first).items() if name in ("validate", "sample")
    )
    saves = [event.t for event in process.events if isinstance(event, PhaseEvent) and event.phase == "save"]
    written = max((event.t for event in process.events if event.kind in ("checkpoint", "state")), default=None)
    files = max((event.t for event in process.events if event.kind == "checkpoint"), default=None)
    state = 0.0 if files is None or written is None else written - files
    save = written - saves[-1] if saves and written is not None and written > saves[-1] else phases.get("save", 0.0)
    # a run that ends by itself draws behind its last save
    behind = process.events[:0] if written is None else [event for event in process.events if event.t >= written]
    drawn = 0.0 if written is None else phase_seconds(behind, written, finished).get("sample", 0.0)
    return Pace(
        measured=time.time(),
        before=max(0.0, first - process.began - measured_before),
        warm_up=max(0.0, sum(row["s_per_step"] for row in early) - len(early) * step)
        + _untimed(process.rows)
        + compiled.get("sample", 0.0),
        step=step,
        steps_per_epoch=plan.steps.batches_per_epoch / plan.steps.batches_per_step,
        after=max(0.0, process.ended - (written if written is not None else process.ended) - drawn),
        save=max(0.0, save),
        state=state,
        sample=sample,
        validation=validation,
        groups=groups,
        peak=_peak(process.events),
        attention=next((event.route for event in process.events if isinstance(event, AttentionEvent)), ""),
        **_compiling(process),
    )


def _compiled_in(events: Sequence[Event]) -> dict[str, float]:
    """Seconds of compiling by phase: a run does that once, however often it measures or draws."""
    seconds: dict[str, float] = {}
    phase = ""
    for event in events:
        if isinstance(event, PhaseEvent):
            phase = event.phase
        elif isinstance(event, GraphEvent):
            seconds[phase] = seconds.get(phase, 0.0) + (event.seconds or 0.0)
    return seconds


def _untimed(rows: Sequence[Row]) -> float:
    """Seconds of compiling up to the last step that has no time of its own since it compiled; a validation's too."""
    seconds = before = 0.0
    for row in rows:
        compiled = row.get("compile_seconds") or 0.0
        if row.get("s_per_step") is None:
            seconds += max(0.0, compiled - before)
        before = compiled
    return seconds


def _compiling(process: Process) -> dict[str, Any]:
    """The fields of a `Pace` about what a process compiled."""
    last = process.rows[-1] if process.rows else {}
    classes: dict[str, float] = {}
    for event in process.events:
        if isinstance(event, GraphEvent) and event.block:
            classes[event.block] = classes.get(event.block, 0.0) + (event.seconds or 0.0)
    return {
        "compiling": last.get("compile_seconds") or 0.0,
        "compiled_anew": bool(last.get("cache_misses")),
        "classes": classes or None,
    }


def _peak(events: Sequence[Event]) -> int | None:
    """Bytes that a process used at most, as it wrote them at its end."""
    peak = next((event for event in reversed(events) if isinstance(event, MemoryPeakEvent)), None)
    if peak is None:
        return None
    return peak.ram_peak if peak.vram_peak is None else peak.vram_peak


def _rounds(events: Sequence[Event], phase: str) -> int:
    """How often a run went into a phase."""
    phases = [event.phase for event in events if isinstance(event, PhaseEvent)]
    return sum(name == phase and before != phase for before, name in zip(["", *phases], phases, strict=False))


def _by_group(rows: Sequence[Row], plan: Plan) -> dict[str, float]:
    """Mean seconds of a step by group; empty where a step holds batches of several groups."""
    if plan.steps.batches_per_step > 1 or not plan.steps.batches_per_epoch:
        return {}
    names = {index: group.name for group in plan.chosen.groups for index in group.indices}
    taken: dict[str, list[float]] = {}
    batches: dict[int, list[list[int]]] = {}
    for row in rows:
        epoch, number = divmod(int(row["step"]) - 1, plan.steps.batches_per_epoch)
        if epoch not in batches:
            batches[epoch] = plan.batches(epoch)
        taken.setdefault(names[batches[epoch][number][0]], []).append(row["s_per_step"])
    return {name: statistics.mean(seconds) for name, seconds in taken.items()}


def _mean_step(groups: Mapping[str, float], plan: Plan) -> float:
    """Mean of a step over an epoch; a group that was not seen takes as long a token as the one of the nearest size."""
    tokens = {group.name: plan.fits[group.indices[0]].bucket.tokens for group in plan.chosen.groups}
    total = seconds = 0.0
    for count, group in zip(plan.steps.groups, plan.chosen.groups, strict=True):
        near = min(groups, key=lambda name: abs(tokens[name] - tokens[group.name]))
        took = groups.get(group.name, groups[near] * tokens[group.name] / max(1, tokens[near]))
        total += count.batches
        seconds += count.batches * took
    return seconds / total


def _train(probed: Config, root: Path, *, seconds: float, report: Progress, filling: bool) -> Process:
    """Train in a process until enough was seen, ask it to stop, and remove its folder.

    filling: whether it may end as soon as it has filled caches, since it will not be what is measured.
    """
    run = process = None
    try:
        with one_start(lambda: [*list_runs(root), *list_runs(root.parent)]):
            _remove_abandoned(root)
            run = Run.create(probed)
            announce_probe(run)
            began = time.time()
            process = _start(run)
            # it has made itself known before another run may start
            while process.poll() is None and not run.is_at_work():
                time.sleep(_EVERY_S)
        _Watch(run, process, began, bool(probed.sampling.prompts), seconds, filling).follow(report)
        status = run.status()
        if status.state not in ("done", "stopped"):
            raise _failure(run, status)
        rows = MetricsReader(run).tail(_ALL_ROWS)
        return Process(began=began, ended=time.time(), events=read_events(run.events_path)[0], rows=rows)
    finally:
        _end(process)
        if run is not None:
            shutil.rmtree(run.path, ignore_errors=True)


def _failure(run: Run, status: RunStatus) -> ProbeFailed:
    """What ended the trainer of a probe."""
    failure = status.error
    text = status.text if failure is None else failure.text
    events = read_events(run.events_path)[0]
    kind = next((event.error_kind for event in reversed(events) if isinstance(event, ErrorEvent)), None)
    return ProbeFailed(f"The probe failed: {text}", "" if failure is None else failure.remedy, kind or "unknown")


def _remove_abandoned(root: Path) -> None:
    """Remove what probes left that were killed, with files as large as a model. Called while no other one starts."""
    for run in list_runs(root):
        record = run.record()
        starter = ProcessId.from_record(record.get("starter") or {})
        if is_here(record) and not run.is_at_work() and (starter is None or not starter.is_alive()):
            shutil.rmtree(run.path, ignore_errors=True)


def _start(run: Run) -> subprocess.Popen[bytes]:
    """The trainer as a child of this process, which ends with it."""
    command = [sys.executable, "-m", "backend.train", "--run", str(run.path)]
    word = run.prepare_start(command)
    with run.log_path.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=PROJECT_ROOT,
            env=trainer_environment(run, word, {WITH_STARTER: "1"}),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """Leave no trainer behind where this process is asked to end: without its input it ends at once, unsaved."""
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class _Watch:
    """Watches a probe, and asks for samples and its end once its steps were timed for long enough."""

    run: Run
    process: subprocess.Popen[bytes]
    began: float
    samples: bool
    seconds: float
    filling: bool

    def follow(self, report: Progress) -> None:
        """Return at the probe's end."""
        reader, control = StatusReader(self.run), Control(self.run)
        asked = ""
        while self.process.poll() is None:
            status = reader.read()
            share = 1.0 if asked else self._share()
            report(status.text, share)
            if not asked and share >= 1.0:
                asked = "sample" if self.samples and not self._fills() else "stop"
                control.request(asked)
            elif asked == "sample" and self._was_drawn():
                asked = "stop"
                control.request(asked)
            time.sleep(_EVERY_S)

    def _share(self) -> float:
        """How much of what is to be timed was: steps behind the last compile, in seconds and in number."""
        rows = MetricsReader(self.run).tail(_ALL_ROWS)
        timed = [row["s_per_step"] or 0.0 for row in rows]
        if not timed:
            return 0.0
        compiled = [row.get("compile_seconds") or 0.0 for row in rows]
        last = next((index for index in range(len(rows) - 1, 0, -1) if compiled[index] > compiled[index - 1]), 0)
        behind = timed[last + 1 :]
        seconds = _SETTLED_S if self._fills(rows) else self.seconds
        return min(1.0, sum(behind) / seconds, len(behind) / _LEAST_STEPS)

    def _fills(self, rows: Sequence[Row] | None = None) -> bool:
        if not self.filling:
            return False
        rows = MetricsReader(self.run).tail(_ALL_ROWS) if rows is None else rows
        return spent_filling(read_events(self.run.events_path)[0], rows, self.began, time.time())

    def _was_drawn(self) -> bool:
        phases = [event.phase for event in read_events(self.run.events_path)[0] if isinstance(event, PhaseEvent)]
        return "sample" in phases and phases[-1] != "sample"
