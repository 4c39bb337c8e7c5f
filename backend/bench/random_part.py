"""Makes a denoiser's weights at random, tensor by tensor, in place of the files that a run reads.

So the bench builds a model as a run loads one: never whole on the GPU where blocks are swapped or quantised.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from backend.models.common import meta_model


@dataclass(frozen=True)
class RandomTensor:
    """The weight called `name`, drawn again at each reading; always the same on one kind of device."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    seed: int

    def read(self) -> Tensor:
        """The tensor on `device`, where drawing is fast: as torch's linear layers begin; biases 0, norms' weights 1."""
        if self.dtype.itemsize == 1:
            # numbers can't be drawn in 8 bits
            return replace(self, dtype=torch.bfloat16).read().to(self.dtype)
        made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if len(self.shape) < 2:
            return made.fill_(1.0 if self.name.endswith("weight") else 0.0)
        bound = math.prod(self.shape[1:]) ** -0.5
        source = torch.Generator(self.device).manual_seed(zlib.crc32(f"{self.seed} {self.name}".encode()))
        return made.uniform_(-bound, bound, generator=source)


class RandomPart:
    """A `PartSource` of a model of class `cls` with this config."""

    title = "the bench"

    def __init__(
        self, cls: type[nn.Module], config: Mapping[str, Any], dtype: torch.dtype, device: torch.device, seed: int
    ) -> None:
        self._config = dict(config)
        self.empty = meta_model.empty_model(cls, config, dtype)
        """The model without weights: names and shapes."""
        self._tensors = {
            name: RandomTensor(name, tuple(value.shape), dtype, device, seed)
            for name, value in self.empty.state_dict().items()
        }

    def config(self) -> dict[str, Any]:
        """As the denoiser's class takes it."""
        return self._config

    def tensors(self) -> dict[str, RandomTensor]:
        """All tensors by name; each is drawn when it is read."""
        return self._tensors
