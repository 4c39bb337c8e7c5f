"""Swaps blocks: their weights stay on the host and stream through a small ring of buffers on the device.

Frozen weights go one way. Weights that are trained themselves (full fine-tuning) are stepped in the backward pass,
while their block is on the device, and go back to the host behind it, with the optimizer's state (`state_stream`).

Each swapped block has one fixed place in the ring (its rank modulo the ring's size), and its parameters are views into
that place for good: see `backend.memory.host_block`. So whatever autograd or a compiled graph saved of a weight in the
forward pass is right again in the backward pass, as soon as the block's bytes are back in its place. Going forth and
back over the blocks, neighbours never share a place, and at each turn the ring already holds what comes first.

The only thing that is followed is at which block the computation has arrived (`backend.memory.block_tracker`): a
forward pre-hook tells in the forward pass and in a checkpoint's recompute, a gradient hook on the block's outputs
before its backward. Arriving at a block means that all kernels of the block before are launched, so its place is free
for what comes next in the direction of travel. Hooks run eagerly, outside of the compiled forward: they make no graph
and break none. A LoRA, its gradients and its optimizer never move.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from backend.memory.block_tracker import BlockTracker
from backend.memory.host_block import HostBlock, frozen, held, host_memory
from backend.memory.pinned_memory import pinned_limit
from backend.memory.state_stream import StateStream
from backend.memory.swap_ring import Ring
from backend.plan.memory.swap import moved_per_batch, swapped_blocks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SwapFacts:
    """What is swapped, in blocks and bytes. chosen: block numbers by class. of: blocks there are.

    host: bytes of the swapped weights, of which `pinned` are pinned. ring: places, of `place_bytes` each. moved: bytes
    to the device in one forward and backward pass. rate: bytes a second, as measured from the host to the device.
    stored: bytes of trained weights from the device in one pass.
    """

    device: str
    chosen: dict[str, list[int]]
    blocks: int
    of: int
    host: int
    pinned: int
    ring: int
    place_bytes: int
    moved: int
    rate: float
    stored: int = 0

    @property
    def limit_seconds(self) -> float:
        """What the transfers of one forward and backward pass take by themselves; a bus carries both ways at once."""
        return max(self.moved, self.stored) / self.rate

    def to_dict(self) -> dict[str, Any]:
        """All fields and the limit, as JSON takes them."""
        return asdict(self) | {"limit_seconds": self.limit_seconds}

    def lines(self, batches: int = 1) -> list[str]:
        """For the log. batches: forward and backward passes that make a step."""
        where = ", ".join(f"{kind} {','.join(map(str, numbers))}" for kind, numbers in self.chosen.items() if numbers)
        pinned = f", {self.pinned / 1e9:.2f} GB of it pinned" if self.device == "cuda" else ""
        sentences = [
            f"swap: {self.blocks} of {self.of} blocks ({where}), {self.host / 1e9:.2f} GB in the machine's memory"
            f"{pinned}; {self.ring} buffers of {self.place_bytes / 1e9:.2f} GB on the device",
            f"swap: a step moves {self.moved * batches / 1e9:.2f} GB; at the measured {self.rate / 1e9:.1f} GB/s it "
            f"can't be shorter than {self.limit_seconds * batches * 1000:.0f} ms",
        ]
        if self.stored:
            sentences.append(f"swap: trained weights go back, {self.stored * batches / 1e9:.2f} GB a step")
        if self.device == "cuda" and self.pinned < self.host:
            sentences.append(
                f"swap: {(self.host - self.pinned) / 1e9:.2f} GB could not be pinned and are read from ordinary "
                "memory, several times slower: raise swap_pinned_limit_gb, or swap fewer blocks"
            )
        return sentences


class BlockSwap:
    """Swaps blocks of a model until `close`. Attach it after the LoRA and before compile.

    block_lists: the stacks by class name, in running order. count: blocks to swap, at least 1, over all stacks. ring:
    places on the device. pinned_limit_gb: of the swapped weights, None for the system's own. poison: for tests, see
    `Ring`. trained: weights with a gradient are swapped too, and must be stepped in the backward pass. Afterwards every
    tensor of every block is on `device`, or a view into the ring there. Weights may come from wherever they are; those
    of one block at a time are in memory twice. ValueError when there are not so many blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        block_lists: Mapping[str, Sequence[nn.Module]],
        count: int,
        device: torch.device,
        *,
        ring: int = 2,
        pinned_limit_gb: float | None = None,
        poison: bool = False,
        trained: bool = False,
    ) -> None:
        if count < 1:
            raise ValueError("there is nothing to swap: count must be at least 1")
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        swapped = swapped_blocks({kind: len(blocks) for kind, blocks in block_lists.items()}, count)
        blocks = list(chain.from_iterable(block_lists.values()))
        shared = _shared(model, blocks, trained)
        swappable = [
            HostBlock(f"{kind} block {number}", block, shared, trained=trained) if number in swapped[kind] else None
            for kind, stack in block_lists.items()
            for number, block in enumerate(stack)
        ]
        self._held = [block for block in swappable if block is not None]
        sizes = [block.nbytes for block in self._held]
        self._ring = Ring(min(ring, count), max(sizes), device, poison)
        self._pinned: list[HostBlock] = []
        left = self._take(pinned_limit(pinned_limit_gb))
        self.states = StateStream(self._held, device, ring, left) if trained else None
        follow = (lambda block, direction: None) if self.states is None else self.states.follow
        self._tracker = BlockTracker(blocks, swappable, self._ring, follow)
        for module in (module for block in blocks for module in block.modules()):
            _to_device(module, device)
        fastest = max(self._pinned or self._held, key=lambda block: block.nbytes)
        self.facts = SwapFacts(
            device.type,
            swapped,
            count,
            len(blocks),
            sum(sizes),
            sum(block.nbytes for block in self._pinned),
            len(self._ring.places),
            max(sizes),
            moved_per_batch(sizes, len(self._ring.places)),
            self._ring.measure_rate(fastest),
            sum(block.nbytes for block in self._held if block.written),
        )

    def _take(self, limit: int) -> int:
        """Move each block's weights to the host, pinned as far as `limit` goes, and its parameters into the ring.

        Returns what is left of the limit.
        """
        ranks = {id(block): rank for rank, block in enumerate(self._held)}
        left, refused = limit, False
        for block in self._held:
            flat = host_memory(block.nbytes)
            if self.device.type == "cuda" and flat.numel() <= left and not refused:
                refused = not block.pin(flat)
                if refused:
                    log.warning("the system refuses to pin more memory after %.2f GB", (limit - left) / 1e9)
                else:
                    left -= flat.numel()
                    self._pinned.append(block)
            block.fill(flat)
            block.bind(self._ring.places[ranks[id(block)] % len(self._ring.places)].flat)
        return 0 if refused else left

    @property
    def loads(self) -> int:
        """Transfers of a block since the start."""
        return self._ring.loads

    def take_waits(self) -> Callable[[], float]:
        """Begin a new count of seconds that the device waited for weights and optimizer state.

        The function returned gives those of the count that ends here; it may be called once the device has done all
        that was launched before.
        """
        counts = [self._ring.take_waits()]
        if self.states is not None:
            counts.append(self.states.take_waits())
        return lambda: sum(count() for count in counts)

    @property
    def held(self) -> Sequence[HostBlock]:
        """The swapped blocks, in running order."""
        return self._held

    def on_host(self) -> dict[int, Tensor]:
        """Identity of each swapped tensor -> its newest values in the host's memory, live. Waits for the device."""
        self._ring.settle()
        if self.states is not None:
            self.states.settle()
        return {key: value for block in self._held for key, value in block.on_host().items()}

    def read_again(self) -> None:
        """Values in the host's memory were set: what is on the device is of no use."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._tracker.forget()

    def exchange(self, others: Sequence[HostBlock]) -> None:
        """Exchange the host memory of the swapped blocks with that of as many blocks of the same layout.

        The ring is filled from it from now on. Nothing is copied.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for block, other in zip(self._held, others, strict=True):
            assert block.is_like(other), f"{block.name} has another layout"
            block.flat, other.flat = other.flat, block.flat
        self._tracker.forget()

    def close(self) -> None:
        """Stop swapping: weights are ordinary tensors on the host again, hooks are gone, the ring is freed."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._tracker.end()
        self._ring.settle()
        if self.states is not None:
            self.states.close()
        for block in self._held:
            assert block.flat is not None
            block.bind(block.flat)
        for block in self._pinned:
            block.unpin()
        self._pinned = []
        self._ring.places = []


def swapped_paths(model: nn.Module, block_lists: Mapping[str, Sequence[nn.Module]], count: int) -> tuple[str, ...]:
    """Module paths of the blocks that a `BlockSwap` of `count` blocks takes, for a loader that leaves them on the host.

    ValueError when there are not so many blocks.
    """
    swapped = swapped_blocks({kind: len(blocks) for kind, blocks in block_lists.items()}, count)
    wanted = {id(block_lists[kind][number]) for kind, numbers in swapped.items() for number in numbers}
    return tuple(path for path, module in model.named_modules() if id(module) in wanted)


def _shared(model: nn.Module, blocks: Iterable[nn.Module], trained: bool) -> set[int]:
    """Tensors that more than one block holds, or that something outside of the blocks holds too.

    trained: of all tensors, not of frozen ones alone.
    """
    seen: set[int] = set()
    shared: set[int] = set()
    inside: set[int] = set()
    for block in blocks:
        inside |= {id(module) for module in block.modules()}
        tensors = set(held(block) if trained else frozen(block))
        shared |= seen & tensors
        seen |= tensors
    for module in model.modules():
        if id(module) not in inside:
            shared |= seen & {id(t) for t in chain(module._parameters.values(), module._buffers.values())}
    return shared


def _to_device(module: nn.Module, device: torch.device) -> None:
    """What is not in the ring: the LoRA, shared tensors, and blocks that stay."""
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None and tensor.device != device:
            tensor.data = tensor.data.to(device)
