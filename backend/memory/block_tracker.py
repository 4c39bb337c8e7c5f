"""Follows the computation from block to block, forth and back, and fills the ring ahead of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from backend.memory.host_block import HostBlock
from backend.memory.swap_ring import Ring


def in_backward() -> bool:
    """Whether this thread is inside of a backward pass: a checkpoint's recompute is."""
    return torch._C._current_graph_task_id() != -1


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from tensors_in(inner)


class BlockTracker:
    """Knows at which block the computation is, and which come next.

    blocks: of all stacks in running order, swapped or not. held: their host memory, None for those that stay on the
    device. Each swapped block has one place for good: its rank among them, modulo the ring's size. moved: called with
    the swapped block that is about to run, None for another one, and the direction.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        held: Sequence[HostBlock | None],
        ring: Ring,
        moved: Callable[[HostBlock | None, str], object] = lambda block, direction: None,
    ) -> None:
        self._held, self._ring, self._moved = held, ring, moved
        swapped = [position for position, block in enumerate(held) if block is not None]
        self.place = {position: rank % len(ring.places) for rank, position in enumerate(swapped)}
        self._at: int | None = None
        self._direction = ""
        self._hooks = []
        for position, block in enumerate(blocks):
            self._hooks.append(block.register_forward_pre_hook(partial(self._before, position), with_kwargs=True))
            self._hooks.append(block.register_forward_hook(partial(self._after, position), with_kwargs=True))

    def end(self) -> None:
        """Follow no longer."""
        for hook in self._hooks:
            hook.remove()

    def forget(self) -> None:
        """Begin again, at no block: what the ring holds is no longer of use."""
        self._at, self._direction = None, ""
        self._ring.forget()

    def _before(self, position: int, block: nn.Module, args: Any, kwargs: Any) -> None:
        if in_backward():
            self.arrive(position, "backward")
            return
        # A custom checkpoint runs its blocks without gradients, but its inputs still require them.
        trains = torch.is_grad_enabled() or any(t.requires_grad for t in tensors_in((args, kwargs)))
        self.arrive(position, "forward" if trains else "no_grad")

    def _after(self, position: int, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        # The graph of a recompute is never walked by itself: the hooks of the first forward pass tell.
        if not torch.is_grad_enabled() or in_backward():
            return
        inputs = {id(tensor) for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(output):
            # A tensor that is only handed on belongs to the block that made it.
            if tensor.grad_fn is not None and id(tensor) not in inputs:
                tensor.register_hook(partial(self._before_backward, position))

    def _before_backward(self, position: int, gradient: Tensor) -> None:
        # Runs just before the node that made the output. Nodes run from the latest made to the first, so whatever
        # reads the weights of later blocks is launched by now.
        self.arrive(position, "backward")

    def arrive(self, position: int, direction: str) -> None:
        """The block at `position` is about to run, its direction "forward", "backward" or "no_grad" (forward alone)."""
        if (position, direction) == (self._at, self._direction):
            return
        ring, left = self._ring, self._at
        if left is not None and left != position and left in self.place:
            ring.leave(self.place[left])
        self._at, self._direction = position, direction
        here = self._held[position]
        if here is not None:
            if ring.places[self.place[position]].owner is not here:
                ring.load(self.place[position], here)
            ring.wait(self.place[position])
            if direction == "backward" and here.written:
                ring.places[self.place[position]].changed = True
        self._moved(here, direction)
        self._prefetch()

    def _prefetch(self) -> None:
        """Fill every place with the block that needs it first; what is there and comes first stays."""
        taken: set[int] = set()
        for position in self._coming():
            block, place = self._held[position], self.place[position]
            if place in taken:
                if self._ring.places[place].owner is not block:
                    return  # it must wait for its place, and those after it for theirs
                continue
            taken.add(place)
            if self._ring.places[place].owner is not block:
                self._ring.load(place, block)
            if len(taken) == len(self._ring.places):
                return

    def _coming(self) -> Iterator[int]:
        """Swapped blocks in the order in which they will be needed, the one that is running now first."""
        swapped, at = list(self.place), self._at
        if at in self.place:
            yield at
        before = [position for position in swapped if position < at]
        after = [position for position in swapped if position > at]
        if self._direction == "backward":
            yield from reversed(before)
        elif self._direction == "forward":
            yield from after
            yield from reversed(swapped)
            return
        else:
            yield from after
        yield from swapped
