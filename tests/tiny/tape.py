"""Does what `backend.compile.cuda_graphs.capture` asks of a GPU on a CPU: notes each operator, and runs it again later.

As with CUDA graphs a replay reads its inputs where they lay, writes its results to where they were, draws from the
generator as it stands, and knows nothing of what Python did in between.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backend.compile.cuda_graphs import capture


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, list[tuple[int, Tensor]]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        out = function(*arguments, **(named or {}))
        before = {t.untyped_storage().data_ptr() for t in tree_leaves((arguments, named)) if isinstance(t, Tensor)}
        # What is no view of an input is written there again; a view shows what its base holds.
        made = [
            (i, leaf.detach())
            for i, leaf in enumerate(tree_leaves(out))
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in before
        ]
        self.calls.append((function, arguments, named or {}, made))
        return out

    def replay(self) -> None:
        with torch.no_grad():
            for function, arguments, named, made in self.calls:
                out = tree_leaves(function(*arguments, **named))
                for index, place in made:
                    place.copy_(out[index])


@dataclass
class Card:
    """What the card says of its memory. peak: of a pass. pool: what recordings keep. breaks: the captures that fail."""

    free: int = 100_000_000_000
    peak: int = 1_000
    pool: int = 500
    breaks: bool = False
    tapes: list[Tape] = field(default_factory=list)

    def captured(self, pool: Any, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        tape = Tape()
        with tape:
            result = function()
        if self.breaks:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        self.tapes.append(tape)
        return tape.replay, result


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    stands_for = {
        "DEVICE": "cpu",
        "free_bytes": lambda: card.free,
        "passing_bytes": lambda: card.peak,
        "outside_bytes": lambda: 0,
        "new_pool": object,
        "pool_bytes": lambda pool: card.pool,
        "wait": lambda: None,
        "random_state": torch.get_rng_state,
        "set_random_state": torch.set_rng_state,
        "aside": nullcontext,
        "captured": card.captured,
        "release": lambda: None,
    }
    for name, value in stands_for.items():
        monkeypatch.setattr(capture, name, value)
    return card
