"""Follows torch.compile in process: graphs, recompiles with reasons, breaks, seconds, cache, limits.

It reads torch's own records (one row a compile) and listens to its compile callbacks; `code_kinds` tells it which code
belongs to which block class. A poll with nothing new costs about a microsecond.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import callback as dynamo_callback
from torch._dynamo import utils as dynamo_utils

from backend.compile import code_kinds, collector, compile_durations
from backend.compile.dynamo_counters import counts
from backend.compile.forward_shape import RunningBlock, current_shape, running_block
from backend.compile.recompile_reasons import Cause, InForce, Signature, explain
from backend.runs.events.kinds import Event, GraphBreakEvent, GraphEvent, RecompileEvent

log = logging.getLogger(__name__)

# torch keeps the latest 64 rows by default; a run with many shapes makes more between two polls.
_ROWS_KEPT = 10_000
_TORCH = Path(torch.__file__).parent
_NOTHING_KNOWN = InForce()


@dataclass(frozen=True)
class CompileStats:
    """Counts since `Telemetry.start`. seconds: wall time spent compiling. planned: None until `expect_plan`.

    recompiles: graphs made beyond the plan, or twice for the same shape. compiling: what is compiled right now, in
    words, with what it took last time; None when nothing is.
    """

    graphs: int = 0
    recompiles: int = 0
    breaks: int = 0
    seconds: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    limit_hits: int = 0
    last_reason: str | None = None
    compiling: str | None = None
    planned: int | None = None
    warm: bool = False
    by_class: dict[str, int] = field(default_factory=dict)


@dataclass
class _Compile:
    """One compile as its callback saw it."""

    kind: str
    block: str
    signature: Signature
    started: float
    ended: float | None = None
    guards: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A finished graph: its block class, what it was made for, and why (None for the first of its class)."""

    id: str
    number: int
    kind: str
    block: str
    signature: Signature
    seconds: float
    cause: Cause | None
    guard: str | None
    recompile: bool
    cached: bool


class Telemetry:
    """Counts of one run. `start` before the first compiled call; `poll` and `new_events` at each step.

    folder: compile cache folder, where the last duration of each block class is kept; None keeps none. in_force: what
    the run's settings are already, for advice.
    """

    def __init__(
        self,
        folder: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
        in_force: InForce = _NOTHING_KNOWN,
    ) -> None:
        self._clock, self._in_force = clock, in_force
        self._last_took = compile_durations.Durations(folder)
        self._lock = threading.RLock()
        self._open: dict[str, _Compile] = {}
        self._seen: dict[str, _Compile] = {}
        self._current: _Compile | None = None
        self._rows_done = 0
        self._breaks_done = 0
        self._guards_done: dict[CodeType, int] = {}
        self._events: list[Event] = []
        self._planned: int | None = None
        self._allowed: dict[bool, int | None] = {}
        self._pieces = False
        self._begun: dict[tuple[str, Signature], str] = {}
        self._base: dict[str, int] = {}
        self.graphs: list[Graph] = []
        self.stats = CompileStats()

    def start(self) -> Telemetry:
        """Begin counting from here; what was compiled before is not counted. Returns itself."""
        dynamo_utils.set_compilation_metrics_limit(_ROWS_KEPT)
        self._rows_done = len(dynamo_utils.get_compilation_metrics())
        self._breaks_done = len(dynamo_utils.graph_break_reasons)
        self._base = counts()
        self._listen()
        return self

    def stop(self) -> None:
        """Stop listening; the counts stay."""
        self.poll()
        handler = dynamo_callback.callback_handler
        for callbacks, ours in ((handler.start_callbacks, self._on_start), (handler.end_callbacks, self._on_end)):
            while ours in callbacks:
                callbacks.remove(ours)
        self._last_took.save()

    def expect_plan(self, planned: int | None, training: int | None = None, no_grad: int | None = None) -> None:
        """Tell how many graphs the shape plan expects in the whole run; None when there is no plan.

        training, no_grad: graphs with and without gradients that each block class may have, of each of its backends.
        The warm-up ends when all planned graphs have been made. A graph beyond the plan is a recompile, and an alarm.
        """
        self._planned = planned
        self._allowed = {True: training, False: no_grad}
        self.stats = replace(self.stats, planned=planned)

    def expect(self, graphs: int, no_grad: int) -> None:
        """Something is about to be asked of the model that the plan left open: it may cost this much more.

        graphs: in all; no_grad: of each block class, without gradients.
        """
        allowed = self._allowed.get(False)
        self._allowed[False] = None if allowed is None or self._pieces else allowed + no_grad
        if self._planned is None:
            return
        self._planned += graphs
        self.stats = replace(self.stats, planned=self._planned, warm=self.stats.graphs >= self._planned)

    def poll(self) -> CompileStats:
        """Counts as they are now."""
        self._listen()
        with self._lock:
            rows = dynamo_utils.get_compilation_metrics()
            if len(rows) != self._rows_done:
                self._read(rows)
            self._read_breaks()
            now = counts()
            change = {name: now[name] - self._base.get(name, 0) for name in now}
            self.stats = replace(
                self.stats,
                cache_hits=change["hit"],
                cache_misses=change["miss"],
                limit_hits=change["limit"],
                compiling=self._compiling(),
            )
            return self.stats

    @property
    def compiling(self) -> str | None:
        """What is compiled right now, in words; None when nothing is. Cheap, and safe to ask from any thread."""
        with self._lock:
            return self._compiling()

    def new_events(self) -> list[Event]:
        """Events since the last call, for the run's events.jsonl."""
        self.poll()
        with self._lock:
            events, self._events = self._events, []
        return events

    def difference(self) -> str | None:
        """Planned against observed, in words, when they differ; None when they agree or nothing was planned.

        For the end of a run: in its middle, graphs may still be missing that validation or sampling will need.
        """
        stats = self.poll()
        if self._planned is None or stats.graphs == self._planned:
            return None
        why = (
            f"; the last one because {stats.last_reason}" if stats.graphs > self._planned and stats.last_reason else ""
        )
        return f"{self._planned} graphs were planned, {stats.graphs} were made{why}"

    def expect_pieces(self, training: int, no_grad: int) -> None:
        """Linear layers are left out: a shape's graph is in pieces, whose number depends on sizes that streams share.

        The first block of a class to meet a shape makes its pieces, all in one forward. One that is made for the shape
        later, or for more shapes than planned, is a recompile. training, no_grad: shapes that each block class may
        meet with and without gradients.
        """
        self._pieces = True
        self._allowed = {True: training, False: no_grad}

    # Listening

    def _listen(self) -> None:
        """(Re-)register the callbacks: torch._dynamo.reset() clears them."""
        handler = dynamo_callback.callback_handler
        if self._on_start not in handler.start_callbacks:
            dynamo_callback.on_compile_start(self._on_start)
            dynamo_callback.on_compile_end(self._on_end)

    def _on_start(self, args: Any) -> None:
        collector.seldom()
        what = running_block()
        with self._lock:
            known = self._seen.get(args.compile_id)
            kind = what.kind if what else known.kind if known else "other"
            block = what.name if what else known.block if known else "other code"
            signature = _signature(what)
            record = _Compile(kind, block, signature, self._clock())
            self._open[args.compile_id] = self._current = record
            if known is None:
                self._seen[args.compile_id] = record

    def _on_end(self, args: Any) -> None:
        collector.as_usual()
        with self._lock:
            record = self._open.pop(args.compile_id, None)
            if record is None:
                return
            record.ended = self._clock()
            record.guards = self._new_guards(record.kind)
            took = record.ended - record.started
            self._current = None
            self.stats = replace(self.stats, seconds=self.stats.seconds + took)

    def _new_guards(self, kind: str) -> dict[str, str]:
        """What kept the existing graphs of a class from serving this call: graph id -> guard text."""
        guards: dict[str, str] = {}
        for code in code_kinds.codes_of(kind):
            texts = dynamo_utils.guard_failures.get(code, [])
            for text in texts[self._guards_done.get(code, 0) :]:
                graph, _, reason = str(text).partition(": ")
                guards[graph] = reason
            self._guards_done[code] = len(texts)
        return guards

    def _compiling(self) -> str | None:
        record = self._current
        if record is None:
            return None
        last = self._last_took.words(record.kind)
        return record.block if last is None else f"{record.block} (took {last})"

    # Reading torch's records

    def _read(self, rows: list[Any]) -> None:
        fresh = rows[self._rows_done :] if len(rows) > self._rows_done else rows
        for row in fresh:
            # Rows without code are a graph's late backward; a row without operations kept nothing.
            is_graph = row.is_forward is not False and row.has_guarded_code and row.graph_op_count
            if is_graph and not code_kinds.is_apart(row):
                self._add_graph(row)
        self._rows_done = len(rows)

    def _add_graph(self, row: Any) -> None:
        record = self._seen.get(row.compile_id)
        kind = code_kinds.kind_of(row) or (record.kind if record else "other")
        signature = record.signature if record else Signature(None, gradients=True)
        before = [graph for graph in self.graphs if graph.kind == kind]
        twin = next((graph for graph in before if graph.signature == signature), None)
        guard = record.guards.get(twin.id) if record and twin else None
        guard = guard or (row.recompile_reason.strip() if row.recompile_reason else None)
        cause = explain([graph.signature for graph in before], signature, guard, self._in_force)
        number = len(self.graphs) + 1
        block = record.block if record else row.co_name or "other code"
        if self._pieces:
            recompile = self._late_piece(kind, block, signature)
        else:
            recompile = twin is not None or self._beyond_plan(before, signature, number)
        hit = (row.aotautograd_local_cache_hit_count or 0) > 0 or (
            (row.inductor_fx_local_cache_hit_count or 0) > 0 and not row.inductor_fx_local_cache_miss_count
        )
        seconds = (record.ended - record.started) if record and record.ended else (row.duration_us or 0) / 1e6
        self._last_took.add(kind, seconds, hit)
        graph = Graph(row.compile_id, number, kind, block, signature, seconds, cause, guard, recompile, hit)
        self.graphs.append(graph)
        by_class = self.stats.by_class | {kind: self.stats.by_class.get(kind, 0) + 1}
        self.stats = replace(
            self.stats,
            graphs=number,
            by_class=by_class,
            recompiles=self.stats.recompiles + recompile,
            last_reason=cause.reason if cause else self.stats.last_reason,
            warm=self._planned is not None and number >= self._planned,
        )
        self._events.append(
            GraphEvent(
                graph=number,
                block=kind,
                seconds=round(seconds, 3),
                cached=hit,
                **_sizes(signature),
                gradients=signature.gradients,
                reason=cause.reason if cause else None,
            )
        )
        if recompile:
            self._alarm(graph)

    def _beyond_plan(self, before: list[Graph], signature: Signature, number: int) -> bool:
        if self._planned is None:
            return False
        allowed = self._allowed.get(signature.gradients)
        used = sum(graph.signature.same_use(signature) for graph in before)
        return number > self._planned or (allowed is not None and used >= allowed)

    def _late_piece(self, kind: str, block: str, signature: Signature) -> bool:
        """Whether a piece comes after its shape's first forward through a block, or for a shape beyond the plan."""
        begun = next((key for key in self._begun if key == (kind, signature)), None)
        if begun is not None:
            # Each forward pass sets a shape of its own, equal or not.
            return begun[1].shape is not signature.shape or self._begun[begun] != block
        self._begun[kind, signature] = block
        met = sum(each == kind and known.same_use(signature) for each, known in self._begun)
        allowed = self._allowed.get(signature.gradients)
        return allowed is not None and met > allowed

    def _alarm(self, graph: Graph) -> None:
        cause = graph.cause or Cause("torch gave no reason")
        planned = f" beyond the {self._planned} planned" if self._planned is not None else ""
        log.warning("graph %d%s for %s blocks: %s", graph.number, planned, graph.kind, cause.reason)
        self._events.append(
            RecompileEvent(
                reason=cause.reason,
                block=graph.kind,
                setting=cause.setting,
                guard=graph.guard,
                graph=graph.number,
                planned=self._planned,
            )
        )

    def _read_breaks(self) -> None:
        reasons = dynamo_utils.graph_break_reasons
        if len(reasons) == self._breaks_done:
            return
        # reset() empties torch's list.
        fresh = reasons[self._breaks_done :] if len(reasons) > self._breaks_done else list(reasons)
        self._breaks_done = len(reasons)
        for reason in fresh:
            frame = _place(reason.user_stack or ())
            sentence = next((line.strip() for line in str(reason.reason).splitlines() if line.strip()), "unknown")
            self._events.append(
                GraphBreakEvent(
                    reason=sentence,
                    file=frame.filename if frame else None,
                    line=frame.lineno if frame else None,
                )
            )
        self.stats = replace(self.stats, breaks=self.stats.breaks + len(fresh))


def _place(stack: Sequence[Any]) -> Any:
    """The innermost frame of a break that is not torch's own: its call of a layer says less than who called it."""
    ours = [frame for frame in stack if not Path(frame.filename).is_relative_to(_TORCH)]
    return (ours or stack or [None])[-1]


def _signature(what: RunningBlock | None) -> Signature:
    autocast = None
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            break
    what = what or RunningBlock("other", "other code")
    return Signature(current_shape(), torch.is_grad_enabled(), autocast, what.training, what.backend, what.layout)


def _sizes(signature: Signature) -> dict[str, int]:
    shape = signature.shape
    return {"image_tokens": shape.image_tokens, "text_tokens": shape.text_tokens, "batch": shape.batch} if shape else {}
