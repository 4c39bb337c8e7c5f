"""Holds the buffers on the device that swapped blocks share, and the stream that fills them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from backend.memory.host_block import HostBlock

_POISON = 0xFF  # NaN in float32, bfloat16, float16 and both fp8 formats
_POISON_CYCLES = 20_000_000  # about ten milliseconds before a poisoned place is filled


@dataclass
class _Place:
    """One buffer. owner: the block whose bytes are there, or on their way."""

    flat: Tensor
    owner: HostBlock | None = None
    filled: torch.cuda.Event | None = None
    used: torch.cuda.Event | None = None


class Ring:
    """`count` buffers of `nbytes` on `device`; on CUDA filled by a stream of their own, elsewhere at once.

    poison: for tests. A place holds NaN from the moment that its block leaves, and is filled late, so that a kernel
    that does not wait computes NaN.
    """

    def __init__(self, count: int, nbytes: int, device: torch.device, poison: bool = False) -> None:
        self.device, self.poison = device, poison
        self.cuda = device.type == "cuda"
        self.places = [_Place(torch.empty(nbytes, dtype=torch.uint8, device=device)) for _ in range(count)]
        self.stream = torch.cuda.Stream(device) if self.cuda else None
        self.loads = 0
        self._waits: list[Any] = []
        self._seconds = 0.0
        if poison:
            for place in self.places:
                place.flat.fill_(_POISON)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))

    @torch.no_grad()
    def load(self, index: int, block: HostBlock) -> None:
        """Begin to fill place `index` with a block's bytes, once the device has done with those that are there."""
        place = self.places[index]
        assert block.flat is not None
        place.owner = block
        self.loads += 1
        # selective checkpointing watches operators through a mode, and these are none of the block's own
        with _disable_current_modes():
            if self.stream is None:
                began = time.perf_counter()
                if self.poison:
                    place.flat.fill_(_POISON)
                place.flat[: block.nbytes].copy_(block.flat[: block.nbytes])
                self._seconds += time.perf_counter() - began
                return
            with torch.cuda.stream(self.stream):
                if place.used is not None:
                    self.stream.wait_event(place.used)
                if self.poison:
                    place.flat.fill_(_POISON)
                    torch.cuda._sleep(_POISON_CYCLES)
                place.flat[: block.nbytes].copy_(block.flat[: block.nbytes], non_blocking=True)
                place.filled = torch.cuda.Event()
                place.filled.record(self.stream)

    def wait(self, index: int) -> None:
        """Kernels launched from now on find place `index` filled. The host does not wait."""
        filled = self.places[index].filled
        if filled is None or filled.query():
            return
        stream = torch.cuda.current_stream(self.device)
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record(stream)
        stream.wait_event(filled)
        after.record(stream)
        self._waits.append((before, after))

    def forget(self) -> None:
        """No place holds a block's bytes any more. The device must have done all that was launched."""
        for place in self.places:
            place.owner = place.filled = place.used = None

    def leave(self, index: int) -> None:
        """All kernels that read place `index` are launched: it may be filled again after them."""
        if self.cuda:
            used = torch.cuda.Event()
            used.record(torch.cuda.current_stream(self.device))
            self.places[index].used = used

    def take_waits(self) -> Callable[[], float]:
        """Begin a new count; the function gives the seconds waited up to now, once the device has come so far."""
        waits, self._waits = self._waits, []
        seconds, self._seconds = self._seconds, 0.0
        return lambda: seconds + sum(before.elapsed_time(after) for before, after in waits) / 1000

    @torch.no_grad()
    def measure_rate(self, block: HostBlock, repeats: int = 3) -> float:
        """Bytes a second from the host's memory of `block` to the device, the best of a few transfers."""
        assert block.flat is not None
        source, target = block.flat[: block.nbytes], self.places[0].flat[: block.nbytes]
        self.places[0].owner = None
        best = 0.0
        for _ in range(repeats):
            self._synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            self._synchronize()
            best = max(best, block.nbytes / max(time.perf_counter() - began, 1e-9))
        return best

    def _synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)
