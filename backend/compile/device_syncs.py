"""Counts a step's device-to-host waits where it can: by torch's own synchronisation warnings on CUDA."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

_WARNING = "synchronizing CUDA operation"


@dataclass
class Syncs:
    """Calls that made the host wait for the device; None where that can't be counted (CPU). Filled at the end."""

    count: int | None = None


@contextmanager
def counted_syncs(device: torch.device) -> Iterator[Syncs]:
    """Count the waits of the block's CUDA calls. For a step now and then: the counting itself slows a step down."""
    syncs = Syncs()
    if device.type != "cuda":
        yield syncs
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield syncs
        finally:
            torch.cuda.set_sync_debug_mode(before)
    others = [warning for warning in caught if _WARNING not in str(warning.message)]
    syncs.count = len(caught) - len(others)
    for other in others:
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)


class SyncSampler:
    """Counts the waits of a step now and then, and holds the newest count for the rows of the steps between.

    Only a sampled step pays (a warning a wait); for any other `begin` and `end` compare two numbers. A step is sampled
    once the compiles of the first ones are over, and every `EVERY` steps from then on.
    """

    FIRST, EVERY = 5, 100

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: ExitStack | None = None
        self._syncs = Syncs()
        self._last: int | None = None
        self._seen = 0

    def begin(self) -> None:
        """A step is about to start."""
        self._seen += 1
        if self._device.type == "cuda" and self._seen % self.EVERY == self.FIRST and self._open is None:
            self._open = ExitStack()
            self._syncs = self._open.enter_context(counted_syncs(self._device))

    def end(self) -> int | None:
        """The step is done: the newest count, None before the first one and where nothing can be counted."""
        if self._open is not None:
            self._open.close()
            self._open, self._last = None, self._syncs.count
        return self._last
