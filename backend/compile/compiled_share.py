"""Measures which share of the blocks' time runs compiled where linear layers are left out of the graphs.

The forward of each block and of each layer that is left out is timed, a checkpoint's recompute included; what is not
in such a layer is compiled. Backward passes do not count: theirs run as nodes of autograd, of which nothing
tells to which side they belong. Timing costs a few events on the device in one step, and nothing in any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

_spans: dict[str, list[tuple[Any, Any]]] | None = None
_cuda = False


def begin(device: torch.device) -> None:
    """Time from now on."""
    global _spans, _cuda
    _spans, _cuda = {"block": [], "left out": []}, device.type == "cuda"


def end() -> float | None:
    """Stop timing; the share of the blocks' forward time that ran compiled, None when no block ran. Waits once."""
    global _spans
    spans, _spans = _spans, None
    if not spans or not spans["block"]:
        return None
    if _cuda:
        torch.cuda.synchronize()
    whole, out = (sum(map(_seconds, spans[name])) for name in ("block", "left out"))
    return max(0.0, 1 - out / whole) if whole else None


@contextmanager
def span(name: str) -> Iterator[None]:
    """Time what runs inside as ``block`` or ``left out``, while timing is on."""
    if _spans is None:
        yield
        return
    began = _now()
    try:
        yield
    finally:
        if _spans is not None:
            _spans[name].append((began, _now()))


def left_out(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's `forward` that counts as left out of the graphs."""

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with span("left out"):
            return forward(*args, **kwargs)

    return run


def _now() -> Any:
    if not _cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(pair: tuple[Any, Any]) -> float:
    before, after = pair
    return before.elapsed_time(after) / 1000 if _cuda else after - before
