"""Holds the sizes of the forward that is running, so that telemetry can give the reason of a graph in words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ForwardShape:
    """Sizes of the forward that is running: rows, padded image and text tokens a row, and whether a mask is used."""

    batch: int
    image_tokens: int
    text_tokens: int
    masked: bool = False


@dataclass(frozen=True)
class RunningBlock:
    """The compiled thing that a thread is in.

    kind: its class ("double"). name: its own ("double block 3"). training: train or eval mode. backend: what compiles
    it. layout: what tells its layers from those of other blocks of its class (`layout_of`).
    """

    kind: str
    name: str
    training: bool = True
    backend: str = ""
    layout: int = 0


def layout_of(block: nn.Module) -> int:
    """A number that blocks share which train the same layers: compiled code is made for kinds and shapes of layers."""
    modules = ((name, type(module).__name__, _strength(module)) for name, module in block.named_modules())
    # frozen weights of a class are alike, and those of a swapped block may be elsewhere
    weights = ((name, weight.shape) for name, weight in block.named_parameters() if weight.requires_grad)
    return hash((*modules, *weights))


def _strength(module: nn.Module) -> tuple[object, ...]:
    """A LoRA layer's factors, which peft keeps as plain numbers by adapter."""
    scaling = vars(module).get("scaling")
    return tuple(scaling.items()) if isinstance(scaling, dict) else ()


_current: ForwardShape | None = None
_thread = threading.local()


def set_forward_shape(shape: ForwardShape) -> None:
    """Called by the shape runtime at each forward. Global on purpose: a recompute runs in an autograd thread."""
    global _current
    _current = shape


def current_shape() -> ForwardShape | None:
    """The sizes of the latest forward; None before the first."""
    return _current


@contextmanager
def running(what: RunningBlock) -> Iterator[None]:
    """Mark `what` as running in this thread; nests."""
    before = getattr(_thread, "running", None)
    _thread.running = what
    try:
        yield
    finally:
        _thread.running = before


def running_block() -> RunningBlock | None:
    """What this thread is running, None outside of compiled things."""
    return getattr(_thread, "running", None)
