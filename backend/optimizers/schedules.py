"""Computes the learning rate over a run: warm-up and schedules, by name or class path."""

from __future__ import annotations

import inspect
import logging
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from backend.base.errors import Refused
from backend.optimizers.class_names import accepted_arguments, class_named
from backend.plan.learning_rate import warmup_steps

log = logging.getLogger(__name__)

SCHEDULES = ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex")

_TOTAL_NAMES = ("num_training_steps", "total_steps", "total_iters", "T_max", "max_steps")
"""What the length of a run is called by the schedule classes of torch, transformers and others."""


def make_scheduler(
    name: str,
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup: float = 0.0,
    cycles: int = 1,
    power: float = 1.0,
    min_lr_ratio: float = 0.0,
) -> LRScheduler:
    """The schedule called `name` (one of SCHEDULES, or ``package.Class``), stepped once an optimizer step.

    total_steps: optimizer steps of the whole run. warmup: steps, or below 1 a share of them (`warmup_steps`).
    A class gets the run's length under the name it uses; one that needs more than this is refused.
    """
    if name in SCHEDULES:
        warm = warmup_steps(warmup, total_steps)
        return LambdaLR(optimizer, lambda step: lr_factor(name, step, total_steps, warm, cycles, power, min_lr_ratio))
    cls = class_named(name, dict.fromkeys(SCHEDULES, ""), LRScheduler, "optimizer.lr_scheduler")
    accepted, _ = accepted_arguments(cls)
    options = {key: total_steps for key in _TOTAL_NAMES if key in accepted}
    required = [k for k, p in accepted.items() if p.default is inspect.Parameter.empty and k not in options]
    if required:
        text = f"{cls.__name__} also needs {', '.join(required)}, which no setting gives"
        raise Refused(text, f"Choose one of {', '.join(SCHEDULES)}.", "optimizer.lr_scheduler")
    if warmup:
        log.warning("lr_warmup has no effect: %s has its own schedule", cls.__name__)
    try:
        return cls(optimizer, **options)
    except (TypeError, ValueError) as error:
        text = f"{cls.__name__} can't be made: {error}"
        raise Refused(text, f"Choose one of {', '.join(SCHEDULES)}.", "optimizer.lr_scheduler") from error


def lr_factor(
    name: str, step: int, total: int, warmup: int, cycles: int = 1, power: float = 1.0, min_ratio: float = 0.0
) -> float:
    """What the learning rate is multiplied by at optimizer step `step` (from 0); 1 at the end of the warm-up.

    linear, cosine, cosine_with_restarts and polynomial are those of diffusers' ``optimization.py`` at min_ratio 0;
    `cycles` counts restarts. rex: (1 - p) / (1 - p / 2), p the share done (Chen et al., REX, arXiv 2107.04197).
    min_ratio: the floor that the falling part ends at. ValueError for an unknown name.
    """
    if step < warmup:
        return step / max(1, warmup)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    if name == "constant":
        return 1.0
    if name == "linear":
        falling = 1 - done
    elif name == "cosine":
        falling = 0.5 * (1 + math.cos(math.pi * done))
    elif name == "cosine_with_restarts":
        falling = 0.0 if done >= 1 else 0.5 * (1 + math.cos(math.pi * ((cycles * done) % 1.0)))
    elif name == "polynomial":
        falling = (1 - done) ** power
    elif name == "rex":
        falling = (1 - done) / (1 - done / 2)
    else:
        raise ValueError(f"lr_scheduler {name!r} is unknown")
    return min_ratio + (1 - min_ratio) * falling
