"""Chooses the blocks to swap and counts what a step then moves: without torch, for plan and trainer alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.base.problems import Problem


def swapped_blocks(sizes: Mapping[str, int], count: int) -> dict[str, list[int]]:
    """The blocks to swap, `count` of all stacks together, as numbers by block class.

    sizes: blocks of each class, in running order. They are spread evenly over the whole run of blocks, so that each
    transfer has the same share of computing to hide behind; the very last block is always one of them, since the
    backward pass finds it still there. ValueError when there are not so many.
    """
    total = sum(sizes.values())
    if not 0 <= count <= total:
        raise ValueError(f"{count} blocks are to be swapped, but the model has {total}")
    numbers: dict[str, list[int]] = {kind: [] for kind in sizes}
    index = 0
    for kind, size in sizes.items():
        for number in range(size):
            if (index + 1) * count // total > index * count // total:
                numbers[kind].append(number)
            index += 1
    return numbers


def too_many(count: int, total: int) -> Problem | None:
    """What is wrong with swapping `count` blocks of a model that has `total`."""
    if count <= total:
        return None
    text = f"{count} blocks are to be swapped, but this model has {total}"
    return Problem("memory.blocks_to_swap", None, text, f"Set blocks_to_swap to {total} or less.")


def moved_per_batch(sizes: Sequence[int], ring: int) -> int:
    """Bytes that one forward and backward pass brings to the GPU. sizes: bytes of the swapped blocks, in order.

    What the ring holds at a turn stays: the backward pass begins with the last blocks there, the next forward pass with
    the first.
    """
    if ring >= len(sizes):
        return 0
    return sum(sizes[ring:]) + sum(sizes[: len(sizes) - ring])


def device_bytes(sizes: Sequence[int], ring: int) -> int:
    """Bytes on the GPU for swapped blocks of these sizes: the ring, each place as large as the largest block."""
    return min(ring, len(sizes)) * max(sizes, default=0)
