"""Keeps the frozen weights of a second model of the same build on the host, and exchanges them with the first's.

Both models are one in memory of the device: an exchange moves bytes into the tensors that are there, so that no address
changes and no graph is made again. Weights of swapped blocks are on the host anyway: of these the ring gets another
source, and nothing is copied.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from backend.memory.block_swap import BlockSwap
from backend.memory.host_block import HostBlock, frozen, host_memory

log = logging.getLogger(__name__)


class SecondWeights:
    """Frozen tensors of `second` on the host, in pinned memory as far as `pinned` bytes go; `second` is used up.

    blocks: of `model`, in running order, with those of `second` in the same order. swap: of `model`, where its blocks
    are swapped. Buffers count as frozen tensors. ValueError where the models are not of one build.
    """

    def __init__(
        self,
        model: nn.Module,
        second: nn.Module,
        blocks: Sequence[tuple[nn.Module, nn.Module]],
        swap: BlockSwap | None,
        pinned: int,
    ) -> None:
        self._swap, self._left = swap, pinned
        self._device = next(model.parameters()).device if swap is None else swap.device
        held = {id(block.block): block for block in (swap.held if swap is not None else ())}
        self._sources: list[HostBlock] = []
        self._resident: list[tuple[HostBlock, HostBlock]] = []
        # tensors that are outside of the block, or in more than one, belong to the rest
        inside, inside_second = _in_one(model, [a for a, _ in blocks]), _in_one(second, [b for _, b in blocks])
        for number, (block, other) in enumerate(blocks):
            mine = held.get(id(block)) or HostBlock(f"block {number}", block, _without(block, inside))
            other_block = HostBlock(mine.name, other, _without(other, inside_second))
            self._keep(mine, other_block, id(block) in held)
        rest = HostBlock("the rest", model, inside)
        self._keep(rest, HostBlock("the rest", second, inside_second), False)
        size = sum(block.nbytes for block in self.blocks)
        log.info("The second expert: %.2f GB in the machine's memory, %.2f GB of it pinned", size / 1e9,
                 (pinned - self._left) / 1e9)  # fmt: skip

    @property
    def blocks(self) -> list[HostBlock]:
        """What is on the host."""
        return [*self._sources, *(other for _, other in self._resident)]

    def exchange(self) -> None:
        """The model has the other weights from now on, and the host those that it had."""
        began = time.monotonic()
        if self._swap is not None:
            self._swap.exchange(self._sources)
        for mine, other in self._resident:
            assert other.flat is not None
            mine.exchange(other.flat)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        log.debug("The experts' weights were exchanged in %.2f s", time.monotonic() - began)

    def close(self) -> None:
        """Give the pinned memory back."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for block in self.blocks:
            block.unpin()

    def _keep(self, mine: HostBlock, other: HostBlock, swapped: bool) -> None:
        if not mine.is_like(other):
            raise ValueError(f"{mine.name} of the two models has other tensors")
        flat = host_memory(other.nbytes)
        if self._device.type == "cuda" and 0 < flat.numel() <= self._left and other.pin(flat):
            self._left -= flat.numel()
        other.fill(flat)
        # its tensors' own memory is freed, and with the module what is trained in it
        other.bind(flat)
        other.block = nn.Identity()
        if swapped:
            self._sources.append(other)
        else:
            self._resident.append((mine, other))


def _in_one(model: nn.Module, blocks: Iterable[nn.Module]) -> set[int]:
    """Identities of the frozen tensors that one block holds and nothing else."""
    blocks = list(blocks)
    of_blocks = [set(frozen(block)) for block in blocks]
    modules = {id(module) for block in blocks for module in block.modules()}
    outside: set[int] = set()
    for module in model.modules():
        if id(module) not in modules:
            outside |= {id(t) for t in _own(module)}
    counted: set[int] = set()
    twice: set[int] = set()
    for tensors in of_blocks:
        twice |= counted & tensors
        counted |= tensors
    return counted - twice - outside


def _own(module: nn.Module) -> Iterable[Tensor]:
    return (t for t in chain(module._parameters.values(), module._buffers.values()) if t is not None)


def _without(block: nn.Module, inside: set[int]) -> set[int]:
    """Identities of the block's frozen tensors that are not its alone."""
    return set(frozen(block)) - inside
