"""Trains flow matching: gives the pure functions of `backend.objectives.flow` the names that all objectives have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.memory.seeds import generator
from backend.objectives import flow
from backend.objectives.base import Distance, Noise
from backend.objectives.strata import Strata


@dataclass(frozen=True, slots=True)
class EulerSteps:
    """Euler's method along falling noise levels."""

    sigmas: Sequence[float]
    """The last one is 0."""

    @property
    def levels(self) -> Sequence[float]:
        """The levels at which the denoiser predicts."""
        return self.sigmas[:-1]

    def start(self, noise: Tensor) -> Tensor:
        """Pure noise is level 1."""
        return noise

    def seen(self, x: Tensor, number: int) -> Tensor:
        """x itself."""
        return x

    def step(self, x: Tensor, output: Tensor, number: int) -> Tensor:
        """One step along the velocity."""
        return x + (self.sigmas[number + 1] - self.sigmas[number]) * output


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowMatching:
    """Velocity on the straight path."""

    draw: flow.TimestepDraw = field(default_factory=flow.TimestepDraw)
    """Of noise levels."""
    weighting: str = "none"
    """As in `flow.weight`."""
    distance: Distance = field(default_factory=Distance)
    sigmas: Callable[[int, int], Sequence[float]] | None = None
    """(steps, image tokens) -> the family's own sampling levels, falling, the last 0."""
    strata: Strata | None = None
    """Spreads the levels of rows that follow each other; None draws each by itself."""
    name: str = "flow"

    def levels(self, image_tokens: Sequence[int], seed: int, number: int) -> Tensor:
        """Sigmas in [0, 1]."""
        count = len(image_tokens)
        sources = [generator(seed, "sigma", number, row) for row in range(count)]
        shares = [None] * count if self.strata is None else self.strata.shares(count, seed, number)
        rows = zip(image_tokens, sources, shares, strict=True)
        return torch.stack([flow.draw_sigma(self.draw, *row) for row in rows])

    def noise(self, shape: Sequence[int], seed: int, number: int, row: int) -> Noise:
        """Standard normal noise."""
        drawn = flow.noise(shape, generator(seed, "noise", number, row))
        return Noise(drawn, drawn)

    def noisy(self, x0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """The point on the straight path."""
        return flow.noisy(x0, noise, level)

    def target(self, x0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """The path's velocity."""
        return flow.velocity(x0, noise)

    def losses(
        self,
        predicted: Sequence[Tensor],
        target: Sequence[Tensor],
        levels: Tensor,
        weights: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Distance times the weight of the level."""
        distances = self.distance.rows(predicted, target, levels, 1 - levels, weights)
        return distances * flow.weight(self.weighting, levels)

    def fixed(self, sigmas: Sequence[float]) -> Tensor:
        """The sigmas themselves."""
        return torch.tensor(sigmas, dtype=torch.float32)

    def sampler(self, steps: int, image_tokens: int) -> EulerSteps:
        """Euler's method along the family's own levels."""
        assert self.sigmas is not None, "a family that samples has levels"
        return EulerSteps(self.sigmas(steps, image_tokens))
