"""Streams the optimizer's state of swapped blocks: it is on the host, and on the device while its block is stepped.

Only the backward pass needs it, from the last block to the first: so it has a ring of its own, filled ahead of the
backward pass and emptied behind it. What is streamed are tensors as large as their weight (Adam's two means, also in 8
bits); rows and columns, scales and counts are small and stay where the optimizer made them.

Between two steps the optimizer's own dictionary holds the tensors on the host, so that saving and loading see what is
true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from backend.memory.host_block import HostBlock, HostTensors, host_memory
from backend.memory.swap_ring import Ring

log = logging.getLogger(__name__)

State = dict[str, Any]


class _BlockState(HostTensors):
    """The streamed state of one block, by weight (its identity) and name."""

    def __init__(self, name: str, states: Sequence[tuple[nn.Parameter, State]]) -> None:
        entries = [(w, key, t) for w, state in states for key, t in state.items() if is_streamed(t, w)]
        # a file of torch can hold a piece of memory in one format alone: that of the largest
        dtype = max((t for _, _, t in entries), key=lambda tensor: tensor.nbytes).dtype
        entries = [entry for entry in entries if entry[2].dtype == dtype]
        super().__init__(f"optimizer state of {name}", [t for _, _, t in entries], written=True)
        self._keys = [(id(weight), key) for weight, key, _ in entries]

    def of(self, weight: nn.Parameter, flat: Tensor) -> State:
        """Name -> the tensor of `weight` as it lies in `flat`."""
        places = zip(self._keys, self._pieces, strict=True)
        return {name: piece.view(flat) for (owner, name), piece in places if owner == id(weight)}

    def let_go(self) -> None:
        """Hold nothing but the memory that they were copied to."""
        self._tensors = []


class StateStream:
    """Moves optimizer state with the trained blocks that are swapped.

    blocks: the swapped blocks in running order. count: places of the ring. pinned: bytes that may be pinned.
    """

    def __init__(self, blocks: Sequence[HostBlock], device: torch.device, count: int, pinned: int) -> None:
        self.device, self._count, self._left = device, count, pinned
        self._blocks = [block for block in blocks if block.trained]
        self._ranks = {id(block): rank for rank, block in enumerate(self._blocks)}
        self._owner = {id(weight): block for block in self._blocks for weight in block.trained}
        self._states: dict[int, _BlockState] = {}
        self._ring: Ring | None = None
        self._at: HostBlock | None = None
        self._direction = ""
        self._state_of: Callable[[nn.Parameter], State] = lambda weight: {}

    def attach(self, state_of: Callable[[nn.Parameter], State]) -> None:
        """state_of: gives the optimizer's dictionary of a weight, empty before its first step."""
        self._state_of = state_of

    def keeps(self, weight: nn.Parameter) -> bool:
        """Whether the state of `weight` is streamed."""
        return id(weight) in self._owner

    @property
    def nbytes(self) -> int:
        """Bytes on the host."""
        return sum(state.nbytes for state in self._states.values())

    def follow(self, block: HostBlock | None, direction: str) -> None:
        """The computation arrives at a swapped block, or at another one (None), in this direction."""
        if self._at is not None and (self._at is not block or direction != "backward"):
            self._leave(self._at)
        begins = direction == "backward" and self._direction != "backward"
        self._direction = direction
        self._at = block if direction == "backward" and block is not None and block.trained else None
        if begins:
            self._begin()
        if self._at is not None:
            self._bring(self._at)

    def lend(self, weight: nn.Parameter, state: State) -> None:
        """Give the optimizer the state on the device, before it steps `weight`."""
        streamed = self._streamed(weight)
        if streamed is not None:
            state.update(streamed.of(weight, self._place(weight)))

    @torch.no_grad()
    def take_back(self, weight: nn.Parameter, state: State) -> None:
        """Give it the state on the host again; what the step made anew is copied to its place."""
        streamed = self._streamed(weight)
        if streamed is None:
            return
        assert streamed.flat is not None
        for name, view in streamed.of(weight, self._place(weight)).items():
            if state[name].data_ptr() != view.data_ptr():
                view.copy_(state[name])
        state.update(streamed.of(weight, streamed.flat))

    def take_waits(self) -> Callable[[], float]:
        """As `Ring.take_waits`."""
        return (lambda: 0.0) if self._ring is None else self._ring.take_waits()

    def settle(self) -> None:
        """Bring all state to the host, and wait for it."""
        if self._at is not None:
            self._leave(self._at)
            self._at, self._direction = None, ""
        if self._ring is not None:
            self._ring.settle()

    def forget(self) -> None:
        """The optimizer's state is another one from now on."""
        self._left += sum(state.pinned for state in self._states.values())
        self._states, self._ring, self._at, self._direction = {}, None, None, ""

    def close(self) -> None:
        """Give pinned memory back, once everything is on the host; the ring is freed."""
        self.settle()
        for state in self._states.values():
            state.unpin()
        self._ring = None

    def _streamed(self, weight: nn.Parameter) -> _BlockState | None:
        block = self._owner.get(id(weight))
        return None if block is None else self._states.get(id(block))

    def _place(self, weight: nn.Parameter) -> Tensor:
        block = self._owner[id(weight)]
        assert self._ring is not None and block is self._at, f"a weight of {block.name} is stepped out of its turn"
        return self._ring.places[self._index(block)].flat

    def _index(self, block: HostBlock) -> int:
        assert self._ring is not None
        return self._ranks[id(block)] % len(self._ring.places)

    def _begin(self) -> None:
        """A backward pass begins: lay out the state that was loaded, and have a ring that is large enough."""
        for block in self._blocks:
            self._keep(block)
        largest = max((state.nbytes for state in self._states.values()), default=0)
        if largest and (self._ring is None or self._ring.places[0].flat.numel() < largest):
            if self._ring is not None:
                self._ring.settle()
            self._ring = Ring(min(self._count, len(self._states)), largest, self.device)
            log.info("Optimizer state of swapped blocks: %.2f GB in the machine's memory", self.nbytes / 1e9)

    def _bring(self, block: HostBlock) -> None:
        """Have the state of `block` on the device, and begin to bring that of the blocks that come next."""
        state, ring = self._states.get(id(block)), self._ring
        if ring is None or state is None or state.nbytes > ring.places[0].flat.numel():
            return
        rank, index = self._ranks[id(block)], self._index(block)
        if ring.places[index].owner is not state:
            ring.load(index, state)
        ring.wait(index)
        ring.places[index].changed = True
        for other in reversed(self._blocks[max(0, rank - len(ring.places) + 1) : rank]):
            coming = self._states.get(id(other))
            if coming is not None and ring.places[self._index(other)].owner is not coming:
                ring.load(self._index(other), coming)

    def _leave(self, block: HostBlock) -> None:
        if id(block) not in self._states:
            self._keep(block)
        elif self._ring is not None:
            self._ring.leave(self._index(block))

    def _keep(self, block: HostBlock) -> None:
        """Move the state that the optimizer made, or that was loaded, to memory of the host."""
        states = [(weight, self._state_of(weight)) for weight in block.trained]
        if id(block) in self._states or not any(is_streamed(t, w) for w, s in states for t in s.values()):
            return
        state = _BlockState(block.name, states)
        flat = host_memory(state.nbytes)
        if self.device.type == "cuda" and flat.numel() <= self._left and state.pin(flat):
            self._left -= flat.numel()
        state.fill(flat)
        state.let_go()
        for weight, own in states:
            kept = state.of(weight, flat)
            # what is of another format stays on the device; when it was loaded, it is on the host
            rest = {n: t.to(self.device) for n, t in own.items() if n not in kept and is_streamed(t, weight)}
            own.update(kept | rest)
        self._states[id(block)] = state


def is_streamed(value: object, weight: nn.Parameter) -> bool:
    """Whether a piece of the state of `weight` is large enough to be streamed; what the driver pages isn't."""
    large = isinstance(value, Tensor) and weight.ndim > 1 and value.numel() >= weight.numel()
    return large and not getattr(value, "is_paged", False)
