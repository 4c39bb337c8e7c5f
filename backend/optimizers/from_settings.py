"""Makes the optimizer and the learning-rate schedule that the settings name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from backend.config.sections.optimizer import OptimizerSection
from backend.optimizers.build import make_optimizer
from backend.optimizers.schedules import make_scheduler


def optimizer_of(settings: OptimizerSection, parameters: Sequence[nn.Parameter | dict[str, Any]]) -> Optimizer:
    """The optimizer of the settings over `parameters`, or groups of them with rates of their own."""
    return make_optimizer(
        settings.optimizer,
        parameters,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        betas=(settings.betas[0], settings.betas[1]),
        eps=settings.eps,
        arguments=settings.optimizer_args,
    )


def scheduler_of(settings: OptimizerSection, optimizer: Optimizer, steps: int) -> LRScheduler:
    """The learning-rate schedule of the settings over `steps` optimizer steps."""
    return make_scheduler(
        settings.lr_scheduler,
        optimizer,
        total_steps=steps,
        warmup=settings.lr_warmup,
        cycles=settings.lr_scheduler_num_cycles,
        power=settings.lr_scheduler_power,
        min_lr_ratio=settings.lr_scheduler_min_lr_ratio,
    )
