"""Keeps the running mean of what is trained (EMA): steadier than the weights of one step, and what files then hold.

Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992; the decay's warm-up is that of
diffusers' ``EMAModel``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from backend.optimizers.trained_weights import TrainedWeights

PART = "ema"
"""Where a resume state holds it."""


class Ema:
    """The mean of the trained weights over the steps, in float32 besides them: mean <- d mean + (1 - d) weights.

    d at step n, from 0: the least of `decay` and (1 + n) / (10 + n), and 0 at the first, so that the mean begins at
    what the first step made. steps: of the optimizer that are in it; before the first it is what is trained.
    """

    def __init__(self, weights: TrainedWeights, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self._names = list(weights.tensors())
        self._weights: list[nn.Parameter] = weights.parameters()
        self._mean = [weight.detach().to(torch.float32, copy=True) for weight in self._weights]

    @property
    def mean(self) -> Sequence[Tensor]:
        """The mean of each of the `parameters()`, float32."""
        return self._mean if self.steps else [weight.detach() for weight in self._weights]

    def tensors(self) -> dict[str, Tensor]:
        """The same by the names of `TrainedWeights.tensors()`."""
        return dict(zip(self._names, self.mean, strict=True))

    @torch.no_grad()
    def update(self) -> None:
        """Called once after each step of the optimizer. Nothing waits for the device."""
        kept = min(self.decay, (1 + self.steps) / (10 + self.steps)) if self.steps else 0.0
        if all(weight.dtype == torch.float32 for weight in self._weights):
            torch._foreach_lerp_(self._mean, self._weights, 1 - kept)
        else:
            # one by one: wider copies of all would be a second model
            for mean, weight in zip(self._mean, self._weights, strict=True):
                mean.lerp_(weight.float(), 1 - kept)
        self.steps += 1

    def exchange(self, values: tuple[int, list[Tensor]]) -> tuple[int, list[Tensor]]:
        """Continue from these steps and this mean, of other values of the same weights; return those before."""
        before = self.steps, self._mean
        self.steps, self._mean = values
        return before

    def state_dict(self) -> dict[str, Any]:
        """Mean, steps, and the decay that it was made with."""
        return {"decay": self.decay, "steps": self.steps, "mean": dict(zip(self._names, self._mean, strict=True))}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave, at the present decay. KeyError when it belongs to other weights."""
        for name, mean in zip(self._names, self._mean, strict=True):
            mean.copy_(state_dict["mean"][name])
        self.steps = state_dict["steps"]


def changed(saved: dict[str, Any] | None, now: Ema | None) -> str | None:
    """What a resume should say of a mean that the state has and the run hasn't, or the other way; None where nothing.

    saved: what the state holds.
    """
    if saved is None and now is not None:
        return "The run had no mean of its weights (ema) when it stopped: it begins with the next step."
    if saved is not None and now is None:
        return "The run's mean of its weights (ema) ends here: files hold the trained weights from now on."
    if saved is not None and now is not None and saved["decay"] != now.decay:
        return f"ema_decay was {saved['decay']:g} when the run stopped, and is {now.decay:g} from here on."
    return None
