"""Measures the validation loss: on pictures that are not trained, at fixed noise levels with the same noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.memory.devices import to_device
from backend.memory.seeds import generator
from backend.models.common.conditioning import Conditioning, ConditioningEncoder
from backend.objectives import flow
from backend.objectives.base import Objective

Predict = Callable[[list[Tensor], Tensor, list[dict[str, Tensor]]], list[Tensor]]
"""Noisy latents, levels (B,) and text of a batch -> predictions, through the blocks compiled for training."""


@dataclass(frozen=True, slots=True)
class ValidationLoss:
    """Mean loss at each noise level, in the order of the setting, and over all of them."""

    sigma_losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean over the noise levels."""
        return sum(self.sigma_losses) / len(self.sigma_losses)


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One validation picture: its content key, latent (C, h, w) float32, text, and what the latent's cells count in the
    loss, float32 (h, w), None where all count the same."""

    key: str
    latent: Tensor
    text: Conditioning
    weights: Tensor | None = None


@torch.no_grad()
def validate(
    examples: Iterable[Example],
    predict: Predict,
    *,
    objective: Objective,
    sigmas: Sequence[float],
    repeats: int,
    seed: int,
    batch_size: int,
    device: torch.device,
    conditioning: ConditioningEncoder | None = None,
    after_each: Callable[[], None] = lambda: None,
) -> ValidationLoss:
    """Mean squared error of what `objective` predicts over `examples`, for each of `sigmas`.

    The noise of a draw comes from (seed, the picture's content, its number), and is the same at every level, so that
    neither the order of pictures nor which others there are changes a picture's part. Each picture is measured
    len(sigmas) * repeats times in batches of `batch_size`, the last one filled up with repetitions that are not
    counted: every batch then has the shape of training and costs no graph of its own. conditioning: encodes
    captions that are not encoded yet. ValueError without examples.
    """
    conditioning = conditioning or ConditioningEncoder(device=device)
    totals, count = torch.zeros(len(sigmas), dtype=torch.float64), 0
    for example in examples:
        (text,) = conditioning([example.text])
        draws = [(level, repeat) for repeat in range(repeats) for level in range(len(sigmas))]
        for start in range(0, len(draws), batch_size):
            counted = draws[start : start + batch_size]
            filled = counted + [counted[-1]] * (batch_size - len(counted))
            losses = _losses(example, text, filled, predict, objective, objective.fixed(sigmas), seed, device)
            for (level, _), loss in zip(counted, losses, strict=False):
                totals[level] += loss
        count += 1
        after_each()
    if not count:
        raise ValueError("a validation set needs at least one picture")
    return ValidationLoss(tuple((totals / (count * repeats)).tolist()))


def _losses(
    example: Example,
    text: dict[str, Tensor],
    batch: list[tuple[int, int]],
    predict: Predict,
    objective: Objective,
    fixed: Tensor,
    seed: int,
    device: torch.device,
) -> list[float]:
    """Losses of the draws in `batch` of one picture, with its text on the device; one wait for the device."""
    latent = to_device(example.latent, device)
    noises = [
        to_device(flow.noise(latent.shape, generator(seed, "validation", example.key, repeat)), device)
        for _, repeat in batch
    ]
    levels = to_device(fixed[[level for level, _ in batch]], device)
    noisy = [objective.noisy(latent, n, level) for n, level in zip(noises, levels, strict=True)]
    predicted = predict(noisy, levels, [text] * len(batch))
    targets = [objective.target(latent, n, level) for n, level in zip(noises, levels, strict=True)]
    cells = [] if example.weights is None else [to_device(example.weights, device)] * len(batch)
    return flow.sample_losses(predicted, targets, cells).tolist()
