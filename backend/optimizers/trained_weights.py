"""Defines what is trained, as the optimizer, its mean, a resume state and the loop see it: a LoRA, or a whole model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor, nn


class TrainedWeights(Protocol):
    """The weights that a run trains: `backend.lora.inject.Lora`, or `backend.training.full_weights.FullWeights`."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all that is trained, in the model's order."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer moves, in the model's order."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The same by name, live, without gradient."""
        ...

    def collect_gradients(self) -> None:
        """Called after each backward pass: the gradients are then those of `parameters()`."""
        ...

    def publish(self) -> None:
        """Called when values of `parameters()` changed: the forward takes them from now on."""
        ...

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Set the values that `tensors()` gave, in place. KeyError when one is missing."""
        ...

    def take_over(self, tensors: dict[str, Tensor]) -> None:
        """Hold `tensors`, which are on the host, in place of values on a device that no longer answers."""
        ...

    def scaled(self, strength: float) -> AbstractContextManager[None]:
        """What was trained at `strength` until the block ends, where that can be."""
        ...
