"""Holds the buffers on the device that swapped blocks share, and the streams that fill and empty them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from backend.memory.host_block import HostTensors

_POISON = 0xFF  # NaN in float32, bfloat16, float16 and both fp8 formats
_POISON_CYCLES = 20_000_000  # about ten milliseconds before a poisoned place is filled


@dataclass
class _Place:
    """One buffer. owner: the block whose bytes are there, or on their way. changed: they are newer than the host's."""

    flat: Tensor
    owner: HostTensors | None = None
    changed: bool = False
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
        # a bus carries bytes both ways at once
        self.stream_back = torch.cuda.Stream(device) if self.cuda else None
        self.loads = self.stores = 0
        self._waits: list[Any] = []
        self._seconds = 0.0
        if poison:
            for place in self.places:
                place.flat.fill_(_POISON)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))

    @torch.no_grad()
    def load(self, index: int, block: HostTensors) -> None:
        """Begin to fill place `index` with a block's bytes, once the device has done with those that are there."""
        place = self.places[index]
        assert block.flat is not None
        assert not place.changed, f"{place.owner} was changed and not stored"
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
                for event in (place.used, block.stored):
                    if event is not None:
                        self.stream.wait_event(event)
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
            place.changed = False

    def leave(self, index: int) -> None:
        """All kernels that use place `index` are launched: it may be filled again after them.

        What they changed there is brought to the host's memory first.
        """
        place = self.places[index]
        if self.cuda:
            place.used = torch.cuda.Event()
            place.used.record(torch.cuda.current_stream(self.device))
        if place.changed:
            self._store(place)

    @torch.no_grad()
    def _store(self, place: _Place) -> None:
        block = place.owner
        assert block is not None and block.flat is not None
        place.changed = False
        self.stores += 1
        with _disable_current_modes():
            if self.stream_back is None:
                block.flat[: block.nbytes].copy_(place.flat[: block.nbytes])
                return
            assert place.used is not None
            with torch.cuda.stream(self.stream_back):
                self.stream_back.wait_event(place.used)
                block.flat[: block.nbytes].copy_(place.flat[: block.nbytes], non_blocking=True)
                # the place may be filled again, and the block be read, once its bytes are out
                place.used = block.stored = torch.cuda.Event()
                place.used.record(self.stream_back)

    def settle(self) -> None:
        """Bring everything that was changed on the device to the host, and wait for it."""
        for index, place in enumerate(self.places):
            if place.changed:
                self.leave(index)
        self._synchronize()

    def take_waits(self) -> Callable[[], float]:
        """Begin a new count; the function gives the seconds waited up to now, once the device has come so far."""
        waits, self._waits = self._waits, []
        seconds, self._seconds = self._seconds, 0.0
        return lambda: seconds + sum(before.elapsed_time(after) for before, after in waits) / 1000

    @torch.no_grad()
    def measure_rate(self, block: HostTensors, repeats: int = 3) -> float:
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
