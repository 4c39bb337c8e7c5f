"""Defines the events about compiling: graphs, recordings, and what became of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backend.runs.events.event import Event, Json


@dataclass(slots=True, kw_only=True, frozen=True)
class CompilingEvent(Event):
    """Another block is being compiled, or none is any more."""

    kind = "compile"
    mark = "compiling"
    compiling: str | None
    """The block, and how long it took last time."""


@dataclass(slots=True, kw_only=True, frozen=True)
class CompileStateEvent(Event):
    """Whether this process compiles."""

    kind = "compile"
    mark = "state"
    state: str
    """``off``, ``compiled``, ``partly`` or ``fallback``."""
    reason: str | None = None
    planned: int | None = None
    """Graphs of the plan; None where nothing is planned."""


@dataclass(slots=True, kw_only=True, frozen=True)
class CompiledShareEvent(Event):
    """How much of the blocks' forward time runs compiled, where linear layers are left out."""

    kind = "compile"
    mark = "share"
    share: float
    """0 to 1."""


@dataclass(slots=True, kw_only=True, frozen=True)
class GraphEvent(Event):
    """A graph was compiled."""

    kind = "compile"
    mark = "graph"
    graph: int
    """Its number in this process, from 1."""
    block: str | None = None
    """The class of its blocks."""
    seconds: float | None = None
    cached: bool | None = None
    image_tokens: int | None = None
    text_tokens: int | None = None
    batch: int | None = None
    gradients: bool | None = None
    reason: str | None = None
    """Why the graphs before it did not serve."""


@dataclass(slots=True, kw_only=True, frozen=True)
class AttentionEvent(Event):
    """Which kernel computes attention in this process, and why."""

    kind = "attention"
    route: str
    """A value of the setting ``compile.attention`` other than auto."""
    detail: str = ""
    """What runs underneath."""
    how: Literal["set", "measured", "remembered", "kept", "usual"] = "usual"
    """Set by name; measured now; measured by an earlier run; kept from before a resume; taken without measuring."""
    milliseconds: Json | None = None
    """Of a forward and backward pass, by route, where they were measured."""
    left_out: Json | None = None
    """Why other routes can't be had here, by route."""
    form: str | None = None
    """The shape that was measured."""
    reason: str | None = None
    """Why nothing was measured."""


@dataclass(slots=True, kw_only=True, frozen=True)
class CudaGraphsEvent(Event):
    """What became of recording CUDA graphs."""

    kind = "cuda_graphs"
    state: Literal["recorded", "left out", "failed"] | None = None
    shapes: int | None = None
    seconds: float | None = None
    kept: int | None = None
    """Bytes of the GPU that recordings keep."""
    reason: str | None = None
    """Why some or all are left out."""
    plain_ms: float | None = None
    """A forward and backward pass of the first recorded shape before it was recorded."""
    replay_ms: float | None = None
    """The same pass replayed."""


@dataclass(slots=True, kw_only=True, frozen=True)
class RecompileEvent(Event):
    """A graph was compiled beyond the plan."""

    kind = "recompile"
    reason: str | None = None
    block: str | None = None
    setting: str | None = None
    """The setting that ends it."""
    guard: str | None = None
    graph: int | None = None
    planned: int | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class GraphBreakEvent(Event):
    """A block falls into parts at a place that torch can't trace."""

    kind = "graph_break"
    reason: str | None = None
    file: str | None = None
    line: int | None = None
