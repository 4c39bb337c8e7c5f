"""Whether recording a run's passes as CUDA graphs pays on this card: found by timing some plain ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_PASSES = 3
_SHARE = 0.7
"""Least part of a forward pass that the processor needs for launching it, for recording to pay. On an H200 FLUX's 4 + 8
compiled blocks, at about this share, gain 3 to 5 %; SDXL, which is all launching, three quarters to four fifths."""
_ROOM = 2.3
"""Free memory that recording needs, in what a pass holds for its gradients: recordings keep that much, and a shape that
comes later runs plainly beside them first."""


class Trial:
    """Runs some passes as they are, waits for each, and says whether the processor is what they wait for.

    against: why nothing is to be recorded, once that is found. words: what was found, as a sentence's second half.
    """

    def __init__(self) -> None:
        self.against = ""
        self.words = ""
        self._shares: list[float] = []

    @property
    def decided(self) -> bool:
        """Whether it has seen enough."""
        return bool(self.words)

    def __call__(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        out = function(*given, **named)
        launched = time.perf_counter()
        torch.cuda.synchronize()
        self._shares.append((launched - began) / (time.perf_counter() - began))
        if len(self._shares) == _PASSES:
            self._decide(torch.cuda.memory_allocated() - before)
        return out

    def _decide(self, held: int) -> None:
        """held: bytes that a forward pass leaves for its backward."""
        self.words, self.against = verdict(statistics.median(self._shares), held, free_bytes() + held)


def free_bytes() -> int:
    """What of the current card could still be allocated: free of it, and reserved by torch but not in use."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def verdict(share: float, held: int, free: int) -> tuple[str, str]:
    """What was found, and why nothing is recorded ("" where it pays).

    share: of a forward pass that its launching takes, 0 to 1. held, free: bytes, that a pass holds and that are free
    for it.
    """
    found = f"launching takes {share:.0%} of a forward pass"
    if share < _SHARE:
        return found, f"the card does not wait for the processor: {found}"
    if free < _ROOM * held:
        return found, f"{_ROOM * held / 1e9:.1f} GB of the card must be free for it, and {free / 1e9:.1f} GB are"
    return found, ""
