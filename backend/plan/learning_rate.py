"""Computes the learning rate over a run without torch, for what is shown of it before a start.

The curves are those of `backend.optimizers.schedules`, which names their sources; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from backend.config.sections.optimizer import OptimizerSection


def rate_factors(cfg: OptimizerSection, steps: int, points: int = 240) -> list[float] | None:
    """The learning rate as a share of its highest, at evenly spaced steps from 0 to `steps`; None for a class path."""
    if cfg.lr_scheduler not in _SHAPES:
        return None
    return [rate_factor(cfg, steps * index / (points - 1), steps) for index in range(points)]


def rate_factor(cfg: OptimizerSection, step: float, steps: int) -> float:
    """The learning rate at a step of a run of `steps` as a share of its highest. KeyError for a class path."""
    warmup = warmup_steps(cfg.lr_warmup, steps)
    shape = _SHAPES[cfg.lr_scheduler]
    if step < warmup:
        return step / warmup
    low = 0.0 if cfg.lr_scheduler == "constant" else cfg.lr_scheduler_min_lr_ratio
    share = min(1.0, (step - warmup) / max(1e-9, steps - warmup))
    return low + (1 - low) * shape(share, cfg)


def warmup_steps(warmup: float, steps: int) -> int:
    """Optimizer steps of warm-up of a run of `steps`: below 1 a share of them (rounded), from 1 a number of steps."""
    return min(steps, round(warmup * steps) if warmup < 1 else int(warmup))


def highest_rate(cfg: OptimizerSection) -> float:
    """The learning rate that the schedule's factors are shares of."""
    own = cfg.optimizer_args.get("lr")
    return float(own) if isinstance(own, int | float) else cfg.learning_rate


def is_known(cfg: OptimizerSection) -> bool:
    """Whether the schedule is one of ours, and not a class that the settings name."""
    return cfg.lr_scheduler in _SHAPES


def _restarts(share: float, cfg: OptimizerSection) -> float:
    if share >= 1:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * ((share * cfg.lr_scheduler_num_cycles) % 1.0)))


_SHAPES: dict[str, Callable[[float, OptimizerSection], float]] = {
    "constant": lambda share, cfg: 1.0,
    "linear": lambda share, cfg: 1 - share,
    "cosine": lambda share, cfg: 0.5 * (1 + math.cos(math.pi * share)),
    "cosine_with_restarts": _restarts,
    "polynomial": lambda share, cfg: (1 - share) ** cfg.lr_scheduler_power,
    "rex": lambda share, cfg: (1 - share) / (1 - share / 2),
}
