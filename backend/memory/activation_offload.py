"""Moves the blocks' inputs to the host in the forward pass, and back before the backward pass (checkpointing).

The idea is unsloth's offloaded gradient checkpointing; here on torch's own (non-reentrant) checkpoint, which keeps
gradients on in the forward: LoRA dropout, random numbers and graphs are those of plain checkpointing.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

log = logging.getLogger(__name__)

SMALLEST = 1 << 20
"""Bytes below which a tensor stays on the device: its copy would cost more than its room."""

_IN_FLIGHT = 1
"""Blocks whose inputs may still be on their way to the host while the next one is computed."""


class HostBuffers:
    """Host memory for inputs, used again and again; pinned where a device copies into it."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._pin = True
        self.bytes = 0

    def take(self, like: Tensor) -> Tensor:
        """A host tensor of the size, strides and format of `like`, with old values in it."""
        fitting = [buffer for buffer in self._free if buffer.nbytes >= like.nbytes]
        if fitting:
            buffer = min(fitting, key=lambda each: each.nbytes)
            self._free = [each for each in self._free if each is not buffer]
        else:
            buffer = self._new(like.nbytes, like.is_cuda)
            self.bytes += buffer.nbytes
        return buffer[: like.nbytes].view(like.dtype).as_strided(like.shape, like.stride())

    def give_back(self, view: Tensor) -> None:
        """Let what `take` gave be used again, by work that comes later on the stream that copies."""
        storage = view.untyped_storage()
        self._free.append(torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),)))

    def _new(self, size: int, pinned: bool) -> Tensor:
        if pinned and self._pin:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._pin = False
                log.warning("No more host memory can be pinned, copies of block inputs become slower: %s", error)
        return torch.empty(size, dtype=torch.uint8)


class OffloadedInput:
    """One input of a block from its forward to its recompute: on the device, on the host, and on the device again."""

    def __init__(self, live: Tensor, hosts: HostBuffers, stream: Any) -> None:
        self.host: Tensor | None = None
        self.ready: Any = None
        self.hosts, self.stream = hosts, stream
        self.live: Tensor | None = live
        self.requires_grad = live.requires_grad
        self.device = live.device
        self.host = hosts.take(live)
        with self._side():
            self.host.copy_(live.detach(), non_blocking=True)
            self._note()

    def leave(self) -> None:
        """Let go of the device's copy; work queued from now on waits until it has been read."""
        if self.live is not None:
            self._wait()
            self.live = None

    def prefetch(self) -> None:
        """Begin the way back to the device, where the tensor is not there (any more, or already)."""
        if self.live is not None or self.host is None:
            return
        # Made on the stream that computes, where it will be used and freed.
        back = torch.empty_strided(self.host.shape, self.host.stride(), dtype=self.host.dtype, device=self.device)
        with self._side():
            back.copy_(self.host, non_blocking=True)
            self._note()
        self.live = back

    def fetch(self) -> Tensor:
        """The input for the recompute, a leaf of its own; its host memory is free again."""
        self.prefetch()
        self._wait()
        tensor, self.live = self.live, None
        self._release()
        assert tensor is not None, "a block's input was fetched a second time: backward twice over one forward"
        return tensor.detach().requires_grad_(self.requires_grad)

    def _side(self) -> Any:
        """The stream that copies, behind all that is queued on the one that computes."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.stream)

    def _note(self) -> None:
        if self.stream is not None:
            self.ready = self.stream.record_event()

    def _wait(self) -> None:
        if self.ready is not None:
            torch.cuda.current_stream(self.device).wait_event(self.ready)

    def _release(self) -> None:
        if self.host is not None:
            self.hosts.give_back(self.host)
            self.host = None

    def __del__(self) -> None:
        # A forward without a backward, or a failed one: nobody may reuse memory that a copy still touches.
        if self.host is not None and self.ready is not None:
            self.ready.synchronize()
        self._release()


class _Call:
    """The arguments of one checkpointed call; those that are worth it wait on the host."""

    def __init__(self, arguments: tuple[Any, ...], named: dict[str, Any], offload: ActivationOffload) -> None:
        self.before = offload.latest() if offload.latest is not None else None
        self.kept: list[OffloadedInput] = []
        self.arguments, self.named = self._swap((arguments, named), offload)
        self.first = True

    def _swap(self, value: Any, offload: ActivationOffload) -> Any:
        """`value` with `OffloadedInput` in place of the tensors that go to the host, also inside of lists and dicts."""
        if isinstance(value, Tensor) and offload.wants(value):
            self.kept.append(OffloadedInput(value, offload.hosts, offload.stream(value.device)))
            return self.kept[-1]
        if type(value) in (tuple, list):
            return type(value)(self._swap(each, offload) for each in value)
        if type(value) is dict:
            return {name: self._swap(each, offload) for name, each in value.items()}
        return value

    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as tensors: the caller's own in the forward, those fetched back in the recompute."""
        if self.first:
            self.first = False
            return _filled((self.arguments, self.named), lambda kept: kept.live)
        fetched = {id(kept): kept.fetch() for kept in self.kept}
        if self.before is not None:
            for kept in self.before.kept:
                kept.prefetch()
            # The chain of calls would otherwise live as long as its newest.
            self.before = None
        return _filled((self.arguments, self.named), lambda kept: fetched[id(kept)])

    def leave(self) -> None:
        for kept in self.kept:
            kept.leave()


def _filled(value: Any, tensor: Callable[[OffloadedInput], Any]) -> Any:
    if isinstance(value, OffloadedInput):
        return tensor(value)
    if type(value) in (tuple, list):
        return type(value)(_filled(each, tensor) for each in value)
    if type(value) is dict:
        return {name: _filled(each, tensor) for name, each in value.items()}
    return value


class ActivationOffload:
    """The hook: recomputes a block from its input, and keeps that input on the host between forward and backward.

    Tensors that need a gradient, have tokens (three axes or more) and `smallest` bytes go; what all blocks share
    (modulation, positions, masks) stays. The inputs of the last blocks are needed at once and never leave the device.
    On a CPU the same copies are made, one after the other.
    """

    def __init__(self, smallest: int = SMALLEST) -> None:
        self.smallest, self.hosts = smallest, HostBuffers()
        self.latest: Callable[[], _Call | None] | None = None
        self._leaving: list[Callable[[], _Call | None]] = []
        self._streams: dict[torch.device, Any] = {}

    def wants(self, tensor: Tensor) -> bool:
        """Whether a block's argument goes to the host."""
        return tensor.requires_grad and tensor.ndim >= 3 and tensor.nbytes >= self.smallest and _dense(tensor)

    def stream(self, device: torch.device) -> Any:
        """The stream that copies between `device` and the host; None on a CPU."""
        if device.type != "cuda":
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """`function` of its arguments, to be computed again in the backward pass."""
        while len(self._leaving) > _IN_FLIGHT:
            call = self._leaving.pop(0)()
            if call is not None:
                call.leave()
        call = _Call(arguments, named, self)
        # Weak: what a forward keeps dies with its graph.
        self.latest = weakref.ref(call)
        self._leaving.append(self.latest)
        # torch's checkpoint looks at the tensors it is given for the devices whose random state it has to keep.
        tensors = sorted(_tensors((arguments, named)), key=lambda each: each.device.type == "cpu")
        anchor = tensors[0].new_empty(0) if tensors else None
        del arguments, named, tensors

        def run(_: Tensor | None) -> Any:
            positional, by_name = call.values()
            return function(*positional, **by_name)

        return checkpoint(run, anchor, use_reentrant=False)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (tuple, list):
        for each in value:
            yield from _tensors(each)
    elif type(value) is dict:
        yield from _tensors(tuple(value.values()))


def _dense(tensor: Tensor) -> bool:
    """Whether the tensor fills one stretch of memory in some order of its axes, so that a copy can have its strides."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
