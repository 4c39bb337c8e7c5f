"""Defines the events of a run, a dataclass a kind, and turns them into JSON fields and back.

To add a kind: its class here, or in a module of its topic, and its name in `KINDS`; then the line that writes it, and
what shows it (`gui.run_facts` for the page, `backend.training.terminal` for a terminal).

A field without a default must be there in a line, or the line is no such event. A field with a default may be missing
or odd, as in a run of an older version or in a file that somebody edited: the default stands then.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from backend.runs.events.compile_kinds import (
    AttentionEvent,
    CompiledShareEvent,
    CompileStateEvent,
    CompilingEvent,
    CudaGraphsEvent,
    GraphBreakEvent,
    GraphEvent,
    RecompileEvent,
)
from backend.runs.events.environment import EnvironmentEvent
from backend.runs.events.event import Event, Json
from backend.runs.events.validation import AverageEvent, BestEvent, EarlyStopEvent, OverfitEvent


@dataclass(slots=True, kw_only=True, frozen=True)
class PhaseEvent(Event):
    """A phase began, or got on."""

    kind = "phase"
    phase: str
    """scan, cache_latents, cache_masks, cache_text, load, compile, train, validate, picture_losses, sample, save or
    pause."""
    done: int | None = None
    total: int | None = None
    eta_s: float | None = None
    """Seconds to the end of the phase."""


@dataclass(slots=True, kw_only=True, frozen=True)
class PlanEvent(Event):
    """The shape plan, as `backend.plan.report.plan_dict` gives it."""

    kind = "plan"
    mode: str | None = None
    mode_by_family: bool | None = None
    compile: bool | None = None
    static_token_count: int | None = None
    static_token_counts: list[Any] | None = None
    """Where rows are padded to several counts, one for clips of each length."""
    clips: Json | None = None
    """Windows of clips and the seconds of video that are used and left out; None without clips."""
    text_length: int | None = None
    caption_buckets: list[Any] | None = None
    batch_size: int | None = None
    validation_batch: int | None = None
    images: int | None = None
    validation: Json | None = None
    steps: Json | None = None
    buckets: list[Any] | None = None
    groups: list[Any] | None = None
    graphs: Json | None = None
    modes: list[Any] | None = None
    recommended: str | None = None
    reason: str | None = None
    findings: list[Any] | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class StepTotalEvent(Event):
    """How many optimizer steps the whole run has."""

    kind = "step_total"
    total: int


@dataclass(slots=True, kw_only=True, frozen=True)
class MemoryEstimateEvent(Event):
    """What the run will need, as `backend.plan.memory.report.memory_dict` gives it; sizes in bytes."""

    kind = "memory_estimate"
    verdict: str | None = None
    headline: str | None = None
    rough: bool | None = None
    problems: list[Any] | None = None
    room: int | None = None
    limit: int | None = None
    card: Json | None = None
    peak: str | None = None
    needed: int | None = None
    on_card: bool | None = None
    ram_room: int | None = None
    ram_verdict: str | None = None
    ram_words: str | None = None
    allocated: int | None = None
    stages: list[Any] | None = None
    ram: list[Any] | None = None
    ram_total: int | None = None
    nearest: Json | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class MemoryPeakEvent(Event):
    """What a process used at most, in bytes, with what was estimated."""

    kind = "memory_peak"
    ram_peak: int | None = None
    vram_peak: int | None = None
    vram_reserved_peak: int | None = None
    ram_estimated: int | None = None
    vram_estimated: int | None = None
    vram_compared: int | None = None
    """What the estimate is compared with: the peak, without what recordings keep where the estimate leaves them out."""
    words: str | None = None
    """The comparison in words."""


@dataclass(slots=True, kw_only=True, frozen=True)
class ProcessesEvent(Event):
    """Where each of several processes that train together computes, and the memory that it holds."""

    kind = "processes"
    step: int | None = None
    processes: list[Any] | None = None
    """Of each, by its number: ``device`` in words, ``memory`` and ``total`` in bytes."""


@dataclass(slots=True, kw_only=True, frozen=True)
class SwapEvent(Event):
    """What block swap moves, as `backend.memory.block_swap.SwapFacts` counts it; sizes in bytes."""

    kind = "swap"
    device: str | None = None
    chosen: Json | None = None
    """Block numbers by class."""
    blocks: int | None = None
    of: int | None = None
    host: int | None = None
    pinned: int | None = None
    ring: int | None = None
    place_bytes: int | None = None
    moved: int | None = None
    """To the device in one pass."""
    stored: int | None = None
    """From the device in one pass, of trained weights."""
    rate: float | None = None
    """Bytes a second."""
    limit_seconds: float | None = None
    batches: int | None = None
    """Forward and backward passes that make a step."""
    step_limit_seconds: float | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class ValidationEvent(Event):
    """A validation set was measured."""

    kind = "validation"
    step: int
    set: str
    loss: float | None = None
    """None where it was not finite."""
    sigma_losses: Json | None = None
    """Loss by noise level."""
    trained: bool = False
    """True of training pictures, which are measured for comparison."""
    identity: str = ""
    """Equal for losses that can be compared: of the same pictures, noise levels and noise. Empty in older runs."""


@dataclass(slots=True, kw_only=True, frozen=True)
class PictureLossesEvent(Event):
    """The loss of each training picture was measured."""

    kind = "picture_losses"
    step: int
    moment: str
    """start, middle or end."""
    pictures: int | None = None
    """Pictures and clips, those of validation sets among them."""
    file: str | None = None
    """Path in the run's folder of the table."""


@dataclass(slots=True, kw_only=True, frozen=True)
class SampleEvent(Event):
    """A sample picture or clip was drawn."""

    kind = "sample"
    step: int | None = None
    prompt_index: int | None = None
    file: str
    """Path in the run's folder."""
    prompt: str | None = None
    sheet: str | None = None
    """Path in the run's folder of the picture that shows a clip's frames."""


@dataclass(slots=True, kw_only=True, frozen=True)
class CheckpointEvent(Event):
    """A LoRA file was saved."""

    kind = "checkpoint"
    step: int | None = None
    file: str
    """Path in the run's folder."""
    role: Literal["best", "average"] | None = None
    """What it is besides the run's own saves."""


@dataclass(slots=True, kw_only=True, frozen=True)
class StateEvent(Event):
    """A state to resume from was saved."""

    kind = "state"
    step: int


@dataclass(slots=True, kw_only=True, frozen=True)
class WarningEvent(Event):
    """Something that a person should know, which does not end the run."""

    kind = "warning"
    text: str = ""
    remedy: str = ""


@dataclass(slots=True, kw_only=True, frozen=True)
class ErrorEvent(Event):
    """What ended the run."""

    kind = "error"
    text: str = ""
    cause: str = ""
    remedy: str = ""
    exception: str | None = None
    """As Python wrote it."""
    error_kind: str | None = None
    """A short word that stays the same (``cuda_oom``, ``disk_full`` ...)."""


@dataclass(slots=True, kw_only=True, frozen=True)
class ResumedEvent(Event):
    """A new process continues the run."""

    kind = "resumed"
    step: int | None = None
    generation: int | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class StoppedEvent(Event):
    """The run ended because it was asked to."""

    kind = "stopped"
    step: int | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class DoneEvent(Event):
    """The run came to its end."""

    kind = "done"
    step: int | None = None
    lora: str | None = None
    """Path of the finished LoRA file."""
    seconds: float | None = None
    loss: float | None = None
    loss_smooth: float | None = None
    validation: Json | None = None
    memory: Json | None = None
    best: Json | None = None
    """Fields of the newest `BestEvent`."""
    early_stop: Json | None = None
    """Fields of the `EarlyStopEvent` that ended the run."""
    average: Json | None = None
    """Fields of the `AverageEvent`."""


KINDS: tuple[type[Event], ...] = (
    *(EnvironmentEvent, PhaseEvent, PlanEvent, StepTotalEvent, MemoryEstimateEvent, MemoryPeakEvent, SwapEvent),
    ProcessesEvent,
    *(ValidationEvent, BestEvent, EarlyStopEvent, OverfitEvent, AverageEvent, PictureLossesEvent),
    *(SampleEvent, CheckpointEvent, StateEvent),
    *(CompilingEvent, CompileStateEvent, CompiledShareEvent, GraphEvent),
    *(AttentionEvent, CudaGraphsEvent, RecompileEvent, GraphBreakEvent),
    *(WarningEvent, ErrorEvent, ResumedEvent, StoppedEvent, DoneEvent),
)


def to_fields(event: Event) -> Json:
    """All fields of an event but ``t``, by name."""
    return {field.name: getattr(event, field.name) for field in fields(event) if field.name != "t"}


def from_fields(line: Mapping[str, Any]) -> Event | None:
    """The event of a line's fields (``kind`` and ``t`` included); None for an unknown kind or without what it needs."""
    for kind in _by_kind().get(line["kind"], ()):
        if not kind.mark or kind.mark in line:
            plain, required = _fields(kind)
            values = {name: line[name] for name in plain.keys() & line.keys() if _fits(line[name], plain[name])}
            return kind(**values) if required <= values.keys() else None
    return None


@cache
def _by_kind() -> dict[str, list[type[Event]]]:
    return {word: [kind for kind in KINDS if kind.kind == word] for word in {kind.kind for kind in KINDS}}


@cache
def _fields(kind: type[Event]) -> tuple[dict[str, tuple[type, ...]], frozenset[str]]:
    """The plain types that each field of a class may hold, and the fields that must be there."""
    hints = get_type_hints(kind)
    required = frozenset(field.name for field in fields(kind) if field.default is MISSING)
    return {field.name: tuple(_plain(hints[field.name])) for field in fields(kind)}, required


def _plain(hint: Any) -> list[type]:
    if get_origin(hint) in (Union, types.UnionType):
        return [plain for part in get_args(hint) for plain in _plain(part)]
    if get_origin(hint) is Literal:
        return [str]
    plain = get_origin(hint) or hint
    return [int, float] if plain is float else [plain]


def _fits(value: object, plain: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in plain
    if isinstance(value, int | float) and not abs(value) < 1e15:  # beyond this a whole number has no float
        return False
    return isinstance(value, plain)
