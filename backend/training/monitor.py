"""Watches a run while it trains: memory and compiling for each step's row, events for what is rare, and the alarms."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from backend.base.errors import Failed
from backend.compile import compiled_share
from backend.compile.compile_report import CompileReport
from backend.compile.cuda_graphs.recording import Recorder
from backend.compile.device_syncs import SyncSampler
from backend.compile.telemetry import Telemetry
from backend.memory.block_swap import BlockSwap
from backend.memory.meter import Meter
from backend.plan.graphs import GraphPlan
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CompiledShareEvent, CompileStateEvent, PhaseEvent, ProcessesEvent, WarningEvent
from backend.training.position import CurrentPosition
from backend.training.step_log import Measure

log = logging.getLogger(__name__)

_SHARE_STEP = 2
"""Steps before the one in which the compiled share is timed: its graphs are made by then."""


@dataclass(kw_only=True, slots=True)
class Monitor:
    """What happens besides a step's arithmetic."""

    events: EventWriter
    position: CurrentPosition
    total_steps: int
    meter: Meter
    resumed: bool
    """Whether the run continues from a state."""
    telemetry: Telemetry | None = None
    """None when compile is off."""
    report: CompileReport | None = None
    """What `compile_model` did; None when compile is off."""
    plan: GraphPlan | None = None
    """Graphs of the shape plan; None when compile is off."""
    swap: BlockSwap | None = None
    recorder: Recorder | None = None
    """None where passes aren't recorded."""
    _planned: int = field(init=False)
    _syncs: SyncSampler = field(init=False)
    _samples_requested: bool = False
    _last_verdict: str | None = None
    _first: bool = True
    _steps: int = 0

    def __post_init__(self) -> None:
        self._planned = self.plan.total if self.plan is not None else 0
        self._syncs = SyncSampler(self.meter.device)

    def before_step(self) -> None:
        """A step is about to start: the waits of samples and validation for swapped weights are no part of it."""
        if self.swap is not None:
            self.swap.take_waits()
        if self._steps == _SHARE_STEP and self.report is not None and self.report.disable_linear:
            compiled_share.begin(self.meter.device)
        self._syncs.begin()

    def begin(self) -> None:
        """The first step is about to start: it compiles, where anything is compiled."""
        compiling = self.report is not None and self.report.compiled > 0
        self._compile_state()
        self._phase("compile" if compiling else "train")

    def measure(self) -> Mapping[str, Measure]:
        """Columns of a step's row that the host knows: memory, the counts of compiling so far, the wait for swap.

        Seconds spent recording passes count as compiling: they come once a shape, and are no part of a step's time.
        """
        row: dict[str, Measure] = {**self.meter.read(), "syncs": self._syncs.end()}
        if self.swap is not None:
            row["swap_wait"] = self.swap.take_waits()
        recording = 0.0 if self.recorder is None else self.recorder.seconds
        if self.telemetry is None:
            return row | {"graphs": 0, "recompiles": 0, "breaks": 0, "compile_seconds": recording}
        stats = self.telemetry.poll()
        return row | {
            "graphs": stats.graphs,
            "recompiles": stats.recompiles,
            "breaks": stats.breaks,
            "compile_seconds": stats.seconds + recording,
            "cache_hits": stats.cache_hits,
            "cache_misses": stats.cache_misses,
            "limit_hits": stats.limit_hits,
        }

    def after_step(self) -> None:
        """Write what is new; after the first step, that training began. Failed when compile silently does nothing."""
        self.write_events()
        self._write_share()
        self._steps += 1
        if self._first:
            self._first = False
            self._check()
            self._phase("train")

    def note_requested_samples(self) -> None:
        """A person asks for samples: in a run that draws none by itself, their graphs join the plan at the first."""
        if self._samples_requested or self.plan is None or self.telemetry is None:
            return
        self._samples_requested = True
        graphs, no_grad = self.plan.asked
        if graphs:
            self.telemetry.expect(graphs, no_grad)
            self._planned += graphs
            self._compile_state()

    def place(self) -> dict[str, str | int]:
        """Where this process computes and what it holds there, as `ProcessesEvent` has it."""
        memory, device = self.meter.read(), self.meter.device
        if device.type != "cuda":
            return {"device": "CPU", "memory": memory["ram"], "total": memory["ram_total"]}
        held = {"memory": memory["vram_reserved"], "total": memory["vram_total"]}
        return {"device": torch.cuda.get_device_name(device), **held}

    def write_places(self, places: Sequence[Mapping[str, str | int]]) -> None:
        """Say where each of several processes computes."""
        self.events.write(ProcessesEvent(step=self.position().step, processes=[*map(dict, places)]))

    def resume_training(self) -> None:
        """Back to steps after samples, validation or a save."""
        self.write_events()
        self._phase("train")

    def end(self) -> None:
        """The run is done: compare the graphs that were made with the plan."""
        self.write_events()
        difference = self.telemetry.difference() if self.telemetry is not None else None
        if difference is None or self.report is None or self.report.state != "compiled":
            return
        if self.telemetry.poll().graphs < self._planned and (self.resumed or self.position().epoch < 1):
            # part of a run need not meet every shape
            log.info("compile: %s; not every planned shape came in this part of the run", difference)
            return
        remedy = "The run is not affected. The Compile panel shows what each graph was made for."
        self.events.write(WarningEvent(text=difference, remedy=remedy))
        log.warning(difference)

    def write_events(self) -> None:
        """Write the events of compiling that happened since the last call."""
        if self.telemetry is None:
            return
        for event in self.telemetry.new_events():
            self.events.write(event)
        self._verdict()

    def _write_share(self) -> None:
        """Where linear layers are left out of the graphs: how much still runs compiled, once."""
        share_compiled = compiled_share.end() if self._steps == _SHARE_STEP else None
        if share_compiled is None or self.report is None:
            return
        self.report.share = share_compiled
        self.events.write(CompiledShareEvent(share=share_compiled))
        log.info(
            "compile: linear layers are left out; %.0f %% of the blocks' forward time runs compiled",
            100 * share_compiled,
        )

    def _check(self) -> None:
        """Asked for, nothing known to be in the way, and no graph: that must not pass in silence."""
        if self.report is None or self.telemetry is None:
            return
        if self.report.state == "compiled" and self.telemetry.poll().graphs == 0:
            text = self.report.verdict(0) or ""
            remedy = "Turn compile off, or report this with the run's log: launcher.py doctor shows what compiles here."
            raise Failed(text, remedy)

    def _verdict(self) -> None:
        """Say once for each reason why less is compiled than was asked for."""
        if self.report is None or self.telemetry is None:
            return
        verdict = self.report.verdict(max(1, self.telemetry.poll().graphs))
        if verdict is not None and verdict != self._last_verdict:
            self._last_verdict = verdict
            self._compile_state()
            remedy = self.report.remedy or "launcher.py doctor shows what is missing to compile here."
            self.events.write(WarningEvent(text=verdict, remedy=f"The run continues, slower. {remedy}"))
            log.warning(verdict)

    def _compile_state(self) -> None:
        """Say whether this process compiles: off, compiled, partly, or fallback, the last two with their reason."""
        report = self.report
        state = "off" if report is None else report.state
        why = report.why if report is not None else None
        planned = None if report is not None and report.disable_linear else self._planned
        self.events.write(CompileStateEvent(state=state, reason=why, planned=planned))

    def _phase(self, phase: str) -> None:
        self.events.write(PhaseEvent(phase=phase, done=self.position().step, total=self.total_steps, eta_s=None))
