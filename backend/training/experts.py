"""Trains two experts in one run, by turns: one model in memory of the device, which is one or the other.

What is trained has one set of tensors too, the model's own: at a turn the LoRA's values, the optimizer's state and the
running mean of the expert that leaves are put aside, and those of the other come in their place. So compiled graphs and
recorded passes meet the same tensors in every step. All of it is copied bit by bit: an expert continues where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from backend.config.experts import SIDES, Turns
from backend.families.spec import Side
from backend.lora.inject import Lora
from backend.memory.second_weights import SecondWeights
from backend.objectives.base import Objective
from backend.optimizers.ema import Ema
from backend.optimizers.state import ExactState

PART = "experts"
"""Where a resume state holds the expert that is put aside."""

_OF_SCHEDULE = ("params", "lr", "initial_lr")
"""What of a group of the optimizer is the run's; the rest is the state of what is trained."""


def side_of(level: float, boundary: float) -> Side:
    """The expert that works at a noise level; both numbers count as float32, which noise levels are."""
    edge = torch.tensor(boundary, dtype=torch.float32)
    return "high" if torch.tensor(level, dtype=torch.float32) >= edge else "low"


def other_side(side: Side) -> Side:
    """The other expert."""
    return SIDES[1 - SIDES.index(side)]


@dataclass(kw_only=True, slots=True)
class Aside:
    """What is trained of the expert that is not in the model."""

    tensors: dict[str, Tensor]
    """As `Lora.tensors`, on the LoRA's device."""
    optimizer: dict[Tensor, Any]
    """State by the parameters that it belongs to when the expert comes back."""
    groups: list[dict[str, Any]]
    mean: tuple[int, list[Tensor]] | None
    """As `Ema.values`, where there is a mean."""


@dataclass(kw_only=True, slots=True)
class Experts:
    """The expert that is in the model, and the one that is put aside."""

    lora: Lora
    optimizer: torch.optim.Optimizer
    weights: SecondWeights
    aside: Aside
    turns: Turns
    boundary: float
    """Noise level from which the expert for high noise works."""
    frozen_lengths: Mapping[Side, Mapping[str, Tensor]]
    """As `Lora.frozen_lengths`, of each."""
    objectives: Mapping[Side, Objective]
    """Each draws noise levels of its own range."""
    to_use: Callable[[], Any]
    """Holds what is trained of the expert in the model at the weights to use."""
    ema: Ema | None = None
    side: Side = "high"
    """The expert in the model."""

    def take(self, side: Side) -> None:
        """Bring an expert into the model, with all that is trained of it."""
        if side == self.side:
            return
        self._exchange_trained()
        # whatever fails from here on, what is trained is saved under its own name
        self.side = side
        self.weights.exchange()

    def take_turn(self, step: int) -> None:
        """Bring the expert into the model that is trained in the step after `step` steps."""
        self.take(self.turns.side(step))

    @contextmanager
    def trained(self, side: Side) -> Iterator[Lora]:
        """The LoRA of an expert, with the state of its optimizer and its mean, whichever base is in the model."""
        before = self.side
        if side != before:
            self._exchange_trained()
        try:
            yield replace(self.lora, frozen_lengths=self.frozen_lengths[side])
        finally:
            if side != before:
                self._exchange_trained()

    def side_of(self, level: float) -> Side:
        """The expert that works at a noise level."""
        return side_of(level, self.boundary)

    def levels(self, image_tokens: Sequence[int], seed: int, step: int, micro: int, accumulation: int) -> Tensor:
        """Noise levels (B,) of batch `micro` of the step after `step` steps, of the range of the expert it trains.

        They are those of the expert's own batches in order, so that stratified levels spread over these.
        """
        side = self.turns.side(step)
        number = self.turns.steps(side, step) * accumulation + micro
        return self.objectives[side].levels(image_tokens, seed, number)

    def used_tensors(self) -> dict[Side, dict[str, Tensor]]:
        """What files take of each expert, by the names of `Lora.tensors`: the mean where there is one."""
        live = (self.lora if self.ema is None else self.ema).tensors()
        aside = self.aside.tensors
        if self.aside.mean is not None and self.aside.mean[0]:
            aside = dict(zip(aside, self.aside.mean[1], strict=True))
        return {self.side: live, other_side(self.side): aside}

    def put_aside(self, tensors: Mapping[str, Tensor]) -> None:
        """Hold these values of the expert that is not in the model. For writing a file and nothing else."""
        self.aside.tensors = dict(tensors)

    def state_dict(self) -> dict[str, Any]:
        """Which expert is in the model, and the other."""
        aside = {"side": self.side, "lora": dict(self.aside.tensors)}
        with self.trained(other_side(self.side)):
            aside["optimizer"] = ExactState(self.optimizer).state_dict()
            if self.ema is not None:
                aside["ema"] = self.ema.state_dict()
        return aside

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave; what is trained of the expert in the model then was loaded already.

        KeyError or ValueError where it belongs to other weights.
        """
        side: Side = state_dict["side"]
        if side != self.side:
            self.weights.exchange()
            self.side = side
        with self.trained(other_side(side)):
            self.lora.restore(state_dict["lora"])
            ExactState(self.optimizer).load_state_dict(state_dict["optimizer"])
            if self.ema is not None and "ema" in state_dict:
                self.ema.load_state_dict(state_dict["ema"])

    @torch.no_grad()
    def _exchange_trained(self) -> None:
        aside, optimizer, live = self.aside, self.optimizer, self.lora.tensors()
        # all before the first is changed: without room for them nothing is, and what is saved then is no mixture
        kept = {name: value.clone() for name, value in live.items()}
        for name, value in live.items():
            value.copy_(aside.tensors[name])
            aside.tensors[name].copy_(kept[name])
        self.lora.publish()
        state = optimizer.state
        optimizer.state = aside.optimizer  # type: ignore[assignment]
        aside.optimizer = state  # type: ignore[assignment]
        for number, group in enumerate(optimizer.param_groups):
            own = {name: value for name, value in group.items() if name not in _OF_SCHEDULE}
            for name in own.keys() - aside.groups[number].keys():
                del group[name]
            group.update(aside.groups[number])
            aside.groups[number] = own
        if self.ema is not None:
            assert aside.mean is not None
            aside.mean = self.ema.exchange(aside.mean)


def aside_of(lora: Lora, start: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, ema: Ema | None) -> Aside:
    """The other expert before its first step. start: the values of its LoRA, by the names of `lora`, anywhere."""
    live = lora.tensors()
    tensors = {name: start[name].detach().to(value.device, copy=True) for name, value in live.items()}
    groups = [
        {name: deepcopy(value) for name, value in group.items() if name not in _OF_SCHEDULE}
        for group in optimizer.param_groups
    ]
    mean = None if ema is None else (0, [value.clone() for value in tensors.values()])
    return Aside(tensors=tensors, optimizer=type(optimizer.state)(dict), groups=groups, mean=mean)


@dataclass(kw_only=True, slots=True)
class ExpertDrawing:
    """Draws with both experts: each predicts at its own noise levels, with its own LoRA."""

    experts: Experts
    forward: Callable[..., list[Tensor]]
    """As `backend.training.sampling.Predict`."""
    _strength: float = 1.0
    _entered: Side | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def scaled(self, strength: float) -> Iterator[None]:
        """Both LoRAs at `strength` until the block ends, as `Lora.scaled`."""
        self._strength = strength
        try:
            yield
        finally:
            self._leave()
            self._strength = 1.0

    def predict(self, noisy: list[Tensor], level: Tensor, text: Any, guidance: float) -> list[Tensor]:
        """What the expert of the one level (1,) predicts. Inside of `scaled`."""
        side = self.experts.side_of(float(level))
        if side != self._entered:
            self._leave()
            self.experts.take(side)
            self._stack.enter_context(self.experts.to_use())
            self._stack.enter_context(self.experts.lora.scaled(self._strength))
            self._entered = side
        return self.forward(noisy, level, text, guidance)

    def _leave(self) -> None:
        self._stack.close()
        self._entered = None
