"""How far a training stage has come, by steps or by the clock, and what follows from it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Pace:
    """A stage that ends after `steps` steps or, if that is None, at `until` on the monotonic clock (s)."""

    steps: int | None
    until: float = 0.0
    step: int = 0
    begun: float = field(default_factory=time.monotonic)

    def progress(self) -> float:
        if self.steps is not None:
            return self.step / self.steps
        return (time.monotonic() - self.begun) / max(self.until - self.begun, 1e-6)

    def learning_rate(self, peak: float, warmup: int) -> float:
        """Linear warm-up over `warmup` steps, then a cosine down to a hundredth of the peak."""
        if self.steps is not None:
            warmup = min(warmup, self.steps // 5)
        cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress())))
        return peak * min(1.0, (self.step + 1) / max(1, warmup)) * cosine


class Average:
    """An exponential moving average of the weights of some modules, which follows faster at the start."""

    def __init__(self, modules: list[nn.Module], decay: float) -> None:
        self.params = [p for m in modules for p in m.parameters()]
        self.shadow = [p.detach().clone() for p in self.params]
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 10))
        torch._foreach_lerp_(self.shadow, self.params, 1 - decay)

    @torch.no_grad()
    def copy_to_modules(self) -> None:
        torch._foreach_copy_(self.params, self.shadow)


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, and nothing on a CPU, where it is slower."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
