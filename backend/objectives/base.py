"""Defines what training, validation and samples need of an objective, whatever the family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.objectives import flow


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of one row, float32 (C, h, w)."""

    target: Tensor
    """What the model is to find."""
    added: Tensor
    """What is really mixed in."""


class Steps(Protocol):
    """A sampler on its way through `levels`, which the denoiser receives one by one."""

    levels: Sequence[float]

    def start(self, noise: Tensor) -> Tensor:
        """The first x of standard normal `noise`."""

    def seen(self, x: Tensor, number: int) -> Tensor:
        """What the denoiser sees of x at step `number`."""

    def step(self, x: Tensor, output: Tensor, number: int) -> Tensor:
        """The next x, after the denoiser gave `output`."""


class Objective(Protocol):
    """One way to train a denoiser. Draws come from CPU generators of (seed, purpose, numbers) alone.

    A level is what the denoiser receives: sigma in [0, 1] for flow matching, a timestep of the schedule for diffusion;
    float32 in both.
    """

    name: str

    def levels(self, image_tokens: Sequence[int], seed: int, number: int) -> Tensor:
        """Levels (B,) of the rows of batch `number` of the run, on the CPU."""

    def noise(self, shape: Sequence[int], seed: int, number: int, row: int) -> Noise:
        """Noise of one row, on the CPU."""

    def noisy(self, x0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """What the denoiser sees of the latent x0 (C, h, w) at `level` ()."""

    def target(self, x0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """What it has to predict."""

    def losses(
        self,
        predicted: Sequence[Tensor],
        target: Sequence[Tensor],
        levels: Tensor,
        weights: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Weighted loss of each row, (B,). weights: of the cells of each row, as `flow.sample_losses` has them."""

    def fixed(self, sigmas: Sequence[float]) -> Tensor:
        """The levels that noise levels in (0, 1] stand for, float32 on the CPU."""

    def sampler(self, steps: int, image_tokens: int) -> Steps:
        """A fresh sampler of `steps` steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """How far a prediction is from its target, element by element; the fields carry the names of the settings."""

    loss_type: str = "l2"
    """``l2`` squares the difference d; ``huber`` = 2 c (sqrt(d**2 + c**2) - c); ``smooth_l1`` the same without the
    factor c."""
    huber_c: float = 0.1
    huber_schedule: str = "snr"
    """c is ``constant``; ``exponential``: huber_c**(t / T); ``snr``: (1 - huber_c) / (1 + r) ** 2 + huber_c with r the
    noise to signal ratio (Khrapov et al., arXiv 2403.16728)."""

    def rows(
        self,
        predicted: Sequence[Tensor],
        target: Sequence[Tensor],
        progress: Tensor,
        signal: Tensor,
        weights: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Mean distance of each row, float32 (B,).

        A row's mean runs over its own elements, so that a small picture counts as much as a large one. progress: t / T
        of the rows (B,). signal: 1 / (1 + noise to signal ratio) of the rows (B,). weights: as `flow.sample_losses`.
        """
        if self.loss_type == "l2":
            return flow.sample_losses(predicted, target, weights)
        width = self._width(progress, signal)
        pairs = zip(predicted, target, width, strict=True)
        distances = [self._of((p.float() - t.float()), c) for p, t, c in pairs]
        return torch.stack([torch.mean(each) for each in flow.weighted(distances, weights)])

    def _of(self, difference: Tensor, width: Tensor) -> Tensor:
        # 2 (sqrt(d**2 + c**2) - c), without the cancellation that eats small differences
        grown = 2 * difference**2 / (torch.sqrt(difference**2 + width**2) + width)
        if self.loss_type == "huber":
            return width * grown
        if self.loss_type == "smooth_l1":
            return grown
        raise ValueError(f"loss_type {self.loss_type!r} is unknown")

    def _width(self, progress: Tensor, signal: Tensor) -> Tensor:
        if self.huber_schedule == "constant":
            return torch.full_like(progress, self.huber_c)
        if self.huber_schedule == "exponential":
            return torch.exp(progress * math.log(self.huber_c))
        if self.huber_schedule == "snr":
            return (1 - self.huber_c) * signal**2 + self.huber_c
        raise ValueError(f"huber_schedule {self.huber_schedule!r} is unknown")
