"""Selects which blocks are compiled, and with which backend: rows such as ("double:0-3", compile=False)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ROW = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?::(?P<numbers>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?")


@dataclass(frozen=True)
class BlockChoice:
    """One row: blocks ("double", "double:3", "single:0-5,8"), the backend (None: the general one), compiled or not."""

    blocks: str
    backend: Any = None
    compile: bool = True


@dataclass(frozen=True)
class BlockDecision:
    """What a single block gets: the backend that compiles it, or None for eager."""

    backend: Any


def block_numbers(text: str, count: int) -> list[int]:
    """Block numbers of "0,2,5-8"; ValueError when one is not below `count`."""
    numbers: list[int] = []
    for piece in text.split(","):
        low, _, high = piece.partition("-")
        numbers += range(int(low), int(high or low) + 1)
    beyond = [number for number in numbers if number >= count]
    if beyond:
        raise ValueError(f"there is no block {beyond[0]}: the blocks are 0 to {count - 1}")
    return numbers


def decide_blocks(
    sizes: Mapping[str, int], choices: Iterable[BlockChoice] | None, backend: Any
) -> dict[str, Sequence[BlockDecision]]:
    """Decision of every block, by block class; later rows win.

    sizes: number of blocks by class. ValueError, naming the row, for an unknown class or number.
    """
    decisions = {kind: [BlockDecision(backend)] * count for kind, count in sizes.items()}
    for choice in choices or ():
        match = _ROW.fullmatch(choice.blocks.strip())
        if match is None:
            raise ValueError(f"compile_blocks: {choice.blocks!r} names no blocks; write double:0-3 or single:0,2")
        kind = match["kind"]
        if kind not in sizes:
            raise ValueError(f"compile_blocks: no block class {kind!r}; this model has {', '.join(sizes)}")
        try:
            numbers = block_numbers(match["numbers"], sizes[kind]) if match["numbers"] else range(sizes[kind])
        except ValueError as error:
            raise ValueError(f"compile_blocks: {choice.blocks!r}: {error}") from None
        for number in numbers:
            decisions[kind][number] = BlockDecision((choice.backend or backend) if choice.compile else None)
    return decisions
