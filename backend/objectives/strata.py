"""Spreads the noise levels of rows that follow each other evenly: stratified sampling.

A row's share is where its level lies in the distribution, from 0 to 1. Drawn one by one, shares fall together by
chance, and a step's loss says as much of that as of the model. Here they take turns: which part of [0, 1] a row lies
in, and where within it, are still draws of (seed, numbers) alone, so that a resumed run has the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.memory.seeds import generator

_LEAST = 8
"""Rows that take turns at least: an optimizer with momentum 0.9 learns from the mean of about ten steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strata:
    """Spreads shares over [0, 1].

    The rows of a step lie in as many equal parts of [0, 1], one in each; and so do those of 2, 4, ... steps, up to the
    first number of rows that is `_LEAST` or more (a digital net in one dimension: Owen, Randomly Permuted
    (t,m,s)-Nets, 1995). Each share by itself is even over [0, 1].
    """

    rows: int
    """Of a batch."""
    batches: int = 1
    """Of an optimizer step."""

    @property
    def turns(self) -> int:
        """Rows after which every part had its turn."""
        return self.rows * self.batches << self._doublings

    @property
    def _doublings(self) -> int:
        step, doublings = self.rows * self.batches, 0
        while step << doublings < _LEAST:
            doublings += 1
        return doublings

    def shares(self, count: int, seed: int, number: int) -> Tensor:
        """Shares (count,) of the first rows of batch `number` of the run, float64 on the CPU."""
        block, first = divmod(number * self.rows, self.turns)
        parts = _order(self.rows * self.batches, self._doublings, generator(seed, "strata", block))
        places = [
            torch.rand((), generator=generator(seed, "share", number, row), dtype=torch.float64) for row in range(count)
        ]
        return (torch.tensor(parts[first : first + count], dtype=torch.float64) + torch.stack(places)) / self.turns


def _order(rows: int, doublings: int, source: torch.Generator) -> list[int]:
    """Which part each row of a block lies in: `rows` parts in any order, then each halved, `doublings` times.

    The first half of a block takes one half of each part, the second half the other.
    """
    if doublings == 0:
        return torch.randperm(rows, generator=source).tolist()
    first, second = (_order(rows, doublings - 1, source) for _ in range(2))
    halves = torch.randint(2, (len(first),), generator=source).tolist()
    return [2 * part + halves[part] for part in first] + [2 * part + 1 - halves[part] for part in second]
