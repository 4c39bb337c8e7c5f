"""Device-to-host waits of a step, counted where they can be: torch's own synchronisation warnings on CUDA."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


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
    syncs.count = sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)
