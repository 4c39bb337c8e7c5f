"""Computes flow matching in pure functions: noise, noise levels, weights, target and loss.

The path is straight: ``x_sigma = (1 - sigma) * x0 + sigma * noise`` with sigma in [0, 1], and the model predicts the
velocity ``noise - x0`` (Lipman et al., Flow Matching, arXiv 2210.02747; Liu et al., Rectified Flow, 2209.03003). Every
draw comes from a CPU generator that is made from (seed, purpose, numbers) alone, so that it depends neither on the
device nor on what was drawn before it: a resumed run, another shape mode or a compiled model sees the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.families.shift import ShiftLine

TIMESTEPS = 1000
"""Sigma 1 is called timestep 1000 by the field; only ``min_timestep`` and ``max_timestep`` use this scale."""

_SMALLEST_SIGMA = 1e-3
"""``sigma_sqrt`` weights by 1 / sigma**2: below one timestep the weight stays what it is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimestepDraw:
    """How a noise level is drawn; the fields carry the names and defaults of the settings."""

    kind: str = "shift"
    """``uniform``; ``sigmoid`` = sigmoid(scale * n); ``logit_normal`` = sigmoid(mean + std * n) (Esser et al.,
    arXiv 2403.03206, section 3.1); ``mode`` = 1 - u - scale * (cos(pi u / 2)**2 - 1 + u) of an even u (same section);
    ``shift`` = the sigmoid draw moved by s -> shift * s / (1 + (shift - 1) * s) (same paper, section 5.3.2);
    ``flux_shift`` = the same move by the shift that `line` has for the image's tokens."""
    sigmoid_scale: float = 1.0
    discrete_flow_shift: float = 3.0
    logit_mean: float = 0.0
    logit_std: float = 1.0
    mode_scale: float = 1.29
    min_timestep: float = 0.0
    """Of 1000: noise level 0 of the draw is moved here."""
    max_timestep: float = 1000.0
    """Of 1000: noise level 1 of the draw is moved here."""
    below: float | None = None
    """Noise level that none drawn may reach: where the other expert begins. None for no such level."""
    line: ShiftLine = field(default_factory=ShiftLine)
    """Of the base model."""


def noise(shape: Sequence[int], source: torch.Generator) -> Tensor:
    """Standard normal float32 noise on the CPU; `shape` is the unpadded latent's (C, h, w)."""
    return torch.randn(tuple(shape), generator=source, dtype=torch.float32)


def shifted(sigma: Tensor, shift: float) -> Tensor:
    """The noise level moved towards 1 by a factor `shift` in odds; shift 1 leaves it."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def mode(share: Tensor, scale: float) -> Tensor:
    """The level at an even `share` in [0, 1]: densest in the middle for a `scale` above 0, falling from 1 to 0."""
    return 1 - share - scale * (torch.cos(math.pi / 2 * share) ** 2 - 1 + share)


def draw_sigma(draw: TimestepDraw, image_tokens: int, source: torch.Generator, share: Tensor | None = None) -> Tensor:
    """One noise level in [0, 1], float32, shape ().

    image_tokens: the unpadded picture's, used by ``flux_shift`` only. share: float64 in [0, 1], where in the
    distribution the level lies; left out, `source` draws it. ValueError for an unknown kind.
    """
    if draw.kind in ("uniform", "mode"):
        sigma = torch.rand((), generator=source) if share is None else share.float()
        if draw.kind == "mode":
            sigma = mode(sigma, draw.mode_scale)
    else:
        normal = torch.randn((), generator=source) if share is None else torch.special.ndtri(share).float()
        if draw.kind == "logit_normal":
            sigma = torch.sigmoid(draw.logit_mean + draw.logit_std * normal)
        elif draw.kind in ("sigmoid", "shift", "flux_shift"):
            sigma = torch.sigmoid(draw.sigmoid_scale * normal)
        else:
            raise ValueError(f"timestep_sampling {draw.kind!r} is unknown")
    if draw.kind == "shift":
        sigma = shifted(sigma, draw.discrete_flow_shift)
    elif draw.kind == "flux_shift":
        sigma = shifted(sigma, draw.line.shift(image_tokens))
    low, high = draw.min_timestep / TIMESTEPS, draw.max_timestep / TIMESTEPS
    level = low + sigma * (high - low)
    if draw.below is None:
        return level
    edge = torch.tensor(draw.below, dtype=torch.float32)
    return torch.minimum(level, torch.nextafter(edge, torch.zeros(())))


def weight(scheme: str, sigma: Tensor) -> Tensor:
    """What a sample's loss is multiplied by; float32, the shape of `sigma`.

    ``none`` = 1, ``sigma_sqrt`` = sigma**-2, ``cosmap`` = 2 / (pi * (1 - 2 sigma + 2 sigma**2)) (Esser et al.,
    arXiv 2403.03206; diffusers ``compute_loss_weighting_for_sd3``). ValueError for an unknown scheme.
    """
    if scheme == "none":
        return torch.ones_like(sigma)
    if scheme == "sigma_sqrt":
        return sigma.clamp(min=_SMALLEST_SIGMA) ** -2.0
    if scheme == "cosmap":
        return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2))
    raise ValueError(f"weighting_scheme {scheme!r} is unknown")


def noisy(x0: Tensor, noise_: Tensor, sigma: Tensor) -> Tensor:
    """The point at level `sigma` (shape ()) on the straight path from picture to noise; dtype of `x0`."""
    return (1 - sigma) * x0 + sigma * noise_


def velocity(x0: Tensor, noise_: Tensor) -> Tensor:
    """What the model has to predict: the path's derivative by sigma."""
    return noise_ - x0


def sample_losses(
    predicted: Sequence[Tensor], target: Sequence[Tensor], weights: Sequence[Tensor | None] = ()
) -> Tensor:
    """Mean squared error of each sample, float32, shape (B,).

    A sample's mean runs over its own elements, so that a small picture counts as much as a large one. weights: of each
    sample, what its cells count, float32 (h, w) for the last two axes; None, or no weights at all, for all the same.
    """
    squares = [(p.float() - t.float()) ** 2 for p, t in zip(predicted, target, strict=True)]
    return torch.stack([torch.mean(each) for each in weighted(squares, weights)])


def weighted(distances: Sequence[Tensor], weights: Sequence[Tensor | None]) -> list[Tensor]:
    """Distances of each sample, element by element, times the weights of its cells, as `sample_losses` has them."""
    if not weights:
        return list(distances)
    return [each if w is None else each * w for each, w in zip(distances, weights, strict=True)]
