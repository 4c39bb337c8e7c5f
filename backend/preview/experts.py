"""Draws with both experts of a model of two: each at its own noise levels, with its own LoRA of the pair.

One model is on the device, which is one expert or the other (`backend.memory.second_weights`), so that both share the
compiled graphs and the slot that LoRAs are copied into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import nn

from backend.config.experts import SIDES, boundary_of, expert_file, turns_of
from backend.families.spec import Side
from backend.memory.block_swap import BlockSwap
from backend.memory.pinned_memory import pinned_limit
from backend.memory.second_weights import SecondWeights
from backend.preview.base import PreviewBase
from backend.preview.loras import LoraChoice
from backend.preview.slot import LoraSlot, Used
from backend.training.experts import side_of

Choices = tuple[LoraChoice, ...]


def has_both(base: PreviewBase) -> bool:
    """Whether both experts draw."""
    return turns_of(base.cfg) is not None


def of_side(choices: Choices, side: Side) -> Choices:
    """The LoRAs of one expert: of a pair, the file that is named for it; a file that is named for none is of both."""
    mine = []
    for choice in choices:
        pair = {each: expert_file(choice.path, each) for each in SIDES}
        if pair["high"] == pair["low"]:
            mine.append(choice)
        elif pair[side].is_file() or pair[side] == choice.path:
            mine.append(replace(choice, path=pair[side]))
    return tuple(mine)


def by_expert(base: PreviewBase, sets: Sequence[Choices]) -> list[Choices]:
    """The sets that are in the model one at a time: with two experts, those of each."""
    if not has_both(base):
        return list(sets)
    return list(dict.fromkeys(of_side(choices, side) for choices in sets for side in SIDES))


@dataclass(kw_only=True, slots=True)
class ExpertPair:
    """The expert that is in the model, and the other one, on the host."""

    weights: SecondWeights
    boundary: float
    slot: LoraSlot
    used: Mapping[Side, Used]
    """The LoRAs of each."""
    side: Side = "high"

    def hold(self, used: Mapping[Side, Used]) -> None:
        """Draw with these LoRAs from now on. Refused where one can't be held."""
        self.used = used
        self.slot.hold(used[self.side])

    def take(self, level: float) -> None:
        """Have the expert in the model that works at a noise level."""
        side = side_of(level, self.boundary)
        if side == self.side:
            return
        # what was merged into the weights leaves before these do
        self.slot.hold(())
        self.weights.exchange()
        self.side = side
        self.slot.hold(self.used[side])


def load_pair(
    base: PreviewBase, denoiser: nn.Module, slot: LoraSlot, swap: BlockSwap | None, stack: ExitStack
) -> ExpertPair | None:
    """Read the second expert into memory of the host; None where one draws. stack: gives it back."""
    boundary = boundary_of(base.cfg)
    if not has_both(base) or boundary is None:
        return None
    second = base.load_expert("low", torch.device("cpu"))
    # of one build with the first: the same layers have a LoRA
    LoraSlot(
        second,
        slot.room,
        cast=base.precision == "no",
        device=torch.device("cpu"),
        is_mine=lambda path: not base.is_text(path),
    )
    pairs = [
        pair
        for mine, other in zip(
            base.code.running_order(denoiser).values(), base.code.running_order(second).values(), strict=True
        )
        for pair in zip(mine, other, strict=True)
    ]
    limit = pinned_limit(base.cfg.memory.swap_pinned_limit_gb) - (0 if swap is None else swap.facts.pinned)
    weights = SecondWeights(denoiser, second, pairs, swap, limit)
    stack.callback(weights.close)
    return ExpertPair(weights=weights, boundary=boundary, slot=slot, used=dict.fromkeys(SIDES, ()))
