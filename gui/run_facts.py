"""Computes what the Run tab shows of a run's events: plan, compile, validation, warnings, memory and result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from backend.runs.events.kinds import (
    AttentionEvent,
    CheckpointEvent,
    CompiledShareEvent,
    CompileStateEvent,
    CompilingEvent,
    CudaGraphsEvent,
    DoneEvent,
    Event,
    GraphBreakEvent,
    GraphEvent,
    MemoryEstimateEvent,
    MemoryPeakEvent,
    PhaseEvent,
    PictureLossesEvent,
    PlanEvent,
    ProcessesEvent,
    RecompileEvent,
    ResumedEvent,
    SampleEvent,
    StateEvent,
    StepTotalEvent,
    SwapEvent,
    ValidationEvent,
    WarningEvent,
    to_fields,
)
from backend.runs.events.validation import AverageEvent, BestEvent, EarlyStopEvent, OverfitEvent
from backend.runs.validation_words import average_words, best_words, early_stop_words, overfit_words
from gui import messages

AnyEvent = TypeVar("AnyEvent", bound=Event)
MOST = 400
"""Enough for any chart and table; a run with thousands of samples shows the newest."""
_MOST_WARNINGS = 20


@dataclass
class CompileFacts:
    """What the present process wrote about compiling."""

    compiling: CompilingEvent | None = None
    state: CompileStateEvent | None = None
    share: CompiledShareEvent | None = None
    graphs: list[GraphEvent] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The names that the page reads; those of which nothing is known are left out."""
        shown: dict[str, Any] = {}
        if self.compiling is not None:
            shown["compiling"] = self.compiling.compiling
        if self.state is not None:
            shown |= to_fields(self.state)
        if self.share is not None:
            shown["share"] = self.share.share
        if self.graphs:
            shown |= {"graphs": self.graphs[-1].graph, "made": [to_fields(graph) for graph in self.graphs]}
        return shown


@dataclass
class RunFacts:
    """What the events of a run add up to. `add` is all that changes it."""

    plan: PlanEvent | None = None
    validation: list[ValidationEvent] = field(default_factory=list)
    bests: list[BestEvent] = field(default_factory=list)
    overfits: list[OverfitEvent] = field(default_factory=list)
    early_stop: EarlyStopEvent | None = None
    average: AverageEvent | None = None
    compile: CompileFacts = field(default_factory=CompileFacts)
    attention: AttentionEvent | None = None
    recorded: CudaGraphsEvent | None = None
    recompiles: list[RecompileEvent] = field(default_factory=list)
    breaks: list[GraphBreakEvent] = field(default_factory=list)
    warnings: list[dict[str, str]] = field(default_factory=list)
    estimate: MemoryEstimateEvent | None = None
    peak: MemoryPeakEvent | None = None
    swap: SwapEvent | None = None
    processes: ProcessesEvent | None = None
    result: DoneEvent | None = None
    samples: dict[str, SampleEvent] = field(default_factory=dict)
    """By file name."""
    checkpoints: dict[str, CheckpointEvent] = field(default_factory=dict)
    """By file name."""
    drawn: int = 0
    """Sample events so far; a file may be named by several."""
    saved: int = 0
    """Checkpoint events so far."""
    measured: int = 0
    """Events so far that the loss of each image was measured."""
    version: int = 0
    """Grows with each event that changes what the page shows."""

    def add(self, event: Event) -> None:
        """Take in one event, the next in the file."""
        # Progress comes a hundred times as often as all the rest, and is shown by the status.
        self.version += not isinstance(event, PhaseEvent | StepTotalEvent | StateEvent)
        match event:
            case PlanEvent():
                self.plan = event
            case ValidationEvent():
                self.validation = [*self.validation, event][-MOST:]
            case SampleEvent():
                self.samples[Path(event.file).name] = event
                self.drawn += 1
            case CheckpointEvent():
                self.checkpoints[Path(event.file).name] = event
                self.saved += 1
            case PictureLossesEvent():
                self.measured += 1
            case WarningEvent():
                self._warn(event)
            case MemoryEstimateEvent():
                self.estimate, self.peak = event, None
            case MemoryPeakEvent():
                self.peak = event
            case SwapEvent():
                self.swap = event
            case ProcessesEvent():
                self.processes = event
            case DoneEvent():
                self.result = event
            case BestEvent() | OverfitEvent() | EarlyStopEvent() | AverageEvent():
                self._conclude(event)
            case ResumedEvent():
                self._go_back(event)
                # A new process compiles again: what the old one wrote about it holds no longer.
                self.compile, self.recompiles, self.breaks, self.recorded = CompileFacts(), [], [], None
                self.processes = None
            case _:
                self._compile(event)

    def _conclude(self, event: Event) -> None:
        """What the run concluded from its validation losses."""
        match event:
            case BestEvent():
                self.bests = [*self.bests, event][-MOST:]
            case OverfitEvent():
                self.overfits = [*self.overfits, event][-MOST:]
            case EarlyStopEvent():
                self.early_stop = event
            case AverageEvent():
                self.average = event

    def _go_back(self, event: ResumedEvent) -> None:
        """The run continues from a step: what was concluded behind it is not known any more."""
        self.early_stop = self.average = None
        if event.step is not None:
            self.bests = [each for each in self.bests if each.step <= event.step]
            self.overfits = [each for each in self.overfits if each.step <= event.step]

    def _overfit_warnings(self) -> list[dict[str, str]]:
        """The newest notice of overfitting, until it is taken back."""
        if not self.overfits or self.overfits[-1].state != "begun":
            return []
        text, remedy = overfit_words(self.overfits[-1])
        return [{"text": messages.sentence(text), "remedy": messages.sentence(remedy)}]

    def _compile(self, event: Event) -> None:
        match event:
            case CompilingEvent():
                self.compile.compiling = event
            case CompileStateEvent():
                self.compile.state = event
            case CompiledShareEvent():
                self.compile.share = event
            case GraphEvent():
                self.compile.graphs = [*self.compile.graphs, event][-MOST:]
            case AttentionEvent():
                self.attention = event
            case CudaGraphsEvent():
                self.recorded = event
            case RecompileEvent():
                self.recompiles = [*self.recompiles, event][-MOST:]
            case GraphBreakEvent():
                self.breaks = [*self.breaks, event][-MOST:]

    def _warn(self, event: WarningEvent) -> None:
        """Each process of a run looks at the same settings: its warning is shown once."""
        warning = {"text": messages.sentence(event.text), "remedy": messages.sentence(event.remedy)}
        self.warnings = [*(other for other in self.warnings if other != warning), warning][-_MOST_WARNINGS:]

    def to_dict(self) -> dict[str, Any]:
        """The names that the page reads (`RunFacts` in ``assets/js/server.d.ts``)."""
        return {
            "plan": _shown(self.plan, ("mode", "compile", "graphs", "steps", "recommended")),
            "validation": [_timed(event) for event in self.validation],
            "best": _worded(self.bests[-1] if self.bests else None, best_words),
            "early_stop": _worded(self.early_stop, early_stop_words),
            "average": _worded(self.average, average_words),
            "compile": self.compile.to_dict(),
            "attention": _timed(self.attention),
            "recorded": _timed(self.recorded),
            "recompiles": [_timed(event) for event in self.recompiles],
            "breaks": [_timed(event) for event in self.breaks],
            "warnings": [*self.warnings, *self._overfit_warnings()],
            "memory": self._memory(),
            "swap": _timed(self.swap),
            "processes": [] if self.processes is None else [*filter(_is_place, self.processes.processes or [])],
            "result": _timed(self.result),
        }

    def _memory(self) -> dict[str, Any] | None:
        estimate = _shown(self.estimate, ("headline", "allocated", "ram_total", "verdict"))
        return estimate if self.peak is None else (estimate or {}) | (_timed(self.peak) or {})


def _is_place(place: Any) -> bool:
    """Whether an entry of a `ProcessesEvent`, which is a file's, is one."""
    return (
        isinstance(place, dict)
        and isinstance(place.get("device"), str)
        and all(isinstance(place.get(name), int) for name in ("memory", "total"))
    )


def _shown(event: Event | None, names: tuple[str, ...]) -> dict[str, Any] | None:
    return None if event is None else {name: getattr(event, name) for name in names}


def _worded(event: AnyEvent | None, words: Callable[[AnyEvent], str]) -> dict[str, Any] | None:
    """The fields of an event, and what they say in words."""
    return None if event is None else {**to_fields(event), "words": messages.sentence(words(event))}


def _timed(event: Event | None) -> dict[str, Any] | None:
    """The fields of an event, and when it was written (unix seconds)."""
    return None if event is None else {"t": event.t, **to_fields(event)}
