"""Watches a run while it trains: memory and compiling for each step's row, events for what is rare, and the alarms."""

from __future__ import annotations

import logging
from collections.abc import Mapping

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
from backend.training.checkpoint import Position
from backend.training.step_log import Measure

log = logging.getLogger(__name__)

_SHARE_STEP = 2
"""Steps before the one in which the compiled share is timed: its graphs are made by then."""


class Watch:
    """What happens beside a step's arithmetic.

    telemetry and report (what `compile_model` did) are None when compile is off, recorder where passes aren't recorded.
    plan: graphs of the shape plan; None when compile is off.
    """

    def __init__(
        self,
        events: EventWriter,
        position: Position,
        total_steps: int,
        meter: Meter,
        telemetry: Telemetry | None,
        report: CompileReport | None,
        plan: GraphPlan | None,
        swap: BlockSwap | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._events = events
        self._position = position
        self._total = total_steps
        self.meter = meter
        self._telemetry = telemetry
        self._report = report
        self._resumed = position.step > 0
        self._plan = plan
        self._planned = plan.total if plan is not None else 0
        self._asked = False
        self._told: str | None = None
        self._first = True
        self._swap = swap
        self._recorder = recorder
        self._steps = 0
        self._syncs = SyncSampler(meter.device)

    def before_step(self) -> None:
        """A step is about to start: what samples and validation waited for swapped weights is none of its own."""
        if self._swap is not None:
            self._swap.take_waits()
        if self._steps == _SHARE_STEP and self._report is not None and self._report.disable_linear:
            compiled_share.begin(self.meter.device)
        self._syncs.begin()

    def begin(self) -> None:
        """The first step is about to start: it compiles, where anything is compiled."""
        compiling = self._report is not None and self._report.compiled > 0
        self._compile_state()
        self._phase("compile" if compiling else "train")

    def measure(self) -> Mapping[str, Measure]:
        """Columns of a step's row that the host knows: memory, the counts of compiling so far, the wait for swap.

        Seconds spent recording passes count as compiling: they come once a shape, and are no part of a step's time.
        """
        row: dict[str, Measure] = {**self.meter.read(), "syncs": self._syncs.end()}
        if self._swap is not None:
            row["swap_wait"] = self._swap.take_waits()
        recording = 0.0 if self._recorder is None else self._recorder.seconds
        if self._telemetry is None:
            return row | {"graphs": 0, "recompiles": 0, "breaks": 0, "compile_seconds": recording}
        stats = self._telemetry.poll()
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
        """Tell what is new; after the first step, that training began. Failed when compile silently does nothing."""
        self.tell()
        self._tell_share()
        self._steps += 1
        if self._first:
            self._first = False
            self._check()
            self._phase("train")

    def samples_asked(self) -> None:
        """A person asks for samples: in a run that draws none by itself, their graphs join the plan at the first."""
        if self._asked or self._plan is None or self._telemetry is None:
            return
        self._asked = True
        graphs, no_grad = self._plan.asked
        if graphs:
            self._telemetry.expect(graphs, no_grad)
            self._planned += graphs
            self._compile_state()

    def resume_training(self) -> None:
        """Back to steps after samples, validation or a save."""
        self.tell()
        self._phase("train")

    def end(self) -> None:
        """The run is done: hold the graphs that were made against the plan."""
        self.tell()
        said = self._telemetry.difference() if self._telemetry is not None else None
        if said is None or self._report is None or self._report.state != "compiled":
            return
        if self._telemetry.poll().graphs < self._planned and (self._resumed or self._position.epoch < 1):
            # part of a run need not meet every shape
            log.info("compile: %s; not every planned shape came in this part of the run", said)
            return
        remedy = "The run is not affected. The Compile panel shows what each graph was made for."
        self._events.write("warning", text=said, remedy=remedy)
        log.warning(said)

    def tell(self) -> None:
        """Write the events of compiling that happened since the last call."""
        if self._telemetry is None:
            return
        for event in self._telemetry.new_events():
            fields = dict(event)
            self._events.write(str(fields.pop("kind")), **fields)
        self._verdict()

    def _tell_share(self) -> None:
        """Where linear layers are left out of the graphs: how much still runs compiled, once."""
        found = compiled_share.end() if self._steps == _SHARE_STEP else None
        if found is None or self._report is None:
            return
        self._report.share = found
        self._events.write("compile", share=found)
        log.info("compile: linear layers are left out; %.0f %% of the blocks' forward time runs compiled", 100 * found)

    def _check(self) -> None:
        """Asked for, nothing known to be in the way, and no graph: that must not pass in silence."""
        if self._report is None or self._telemetry is None:
            return
        if self._report.state == "compiled" and self._telemetry.poll().graphs == 0:
            text = self._report.verdict(0) or ""
            remedy = "Turn compile off, or report this with the run's log: launcher.py doctor tells what compiles here."
            raise Failed(text, remedy)

    def _verdict(self) -> None:
        """Say once for each reason why less is compiled than was asked for."""
        if self._report is None or self._telemetry is None:
            return
        said = self._report.verdict(max(1, self._telemetry.poll().graphs))
        if said is not None and said != self._told:
            self._told = said
            self._compile_state()
            remedy = self._report.remedy or "launcher.py doctor shows what is missing to compile here."
            self._events.write("warning", text=said, remedy=f"The run goes on, slower. {remedy}")
            log.warning(said)

    def _compile_state(self) -> None:
        """Say whether this process compiles: off, compiled, partly, or fallback, the last two with their reason."""
        report = self._report
        state = "off" if report is None else report.state
        why = report.why if report is not None else None
        planned = None if report is not None and report.disable_linear else self._planned
        self._events.write("compile", state=state, reason=why, planned=planned)

    def _phase(self, phase: str) -> None:
        self._events.write("phase", phase=phase, done=self._position.step, total=self._total, eta_s=None)
