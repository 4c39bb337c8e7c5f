"""Decides from the settings how the optimizer moves a tensor in full fine-tuning: in one compiled function, or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backend.config.sections.compile import CompileSection
    from backend.config.sections.optimizer import OptimizerSection
    from backend.config.sections.training import TrainingSection


def compiles_steps(section: CompileSection, on_gpu: bool) -> bool:
    """Whether what is done to one tensor is compiled.

    Not on the CPU, where steps are to the last bit what they were and little is gained.
    """
    return section.compile and on_gpu


def by_tensor(training: TrainingSection, optimizer: OptimizerSection) -> bool:
    """Whether tensors are moved one by one: in the backward pass, or since they are rounded at random."""
    return optimizer.fused_backward or training.full_weight_dtype != "fp32"


def moves_stored(optimizer: OptimizerSection) -> bool:
    """Whether the optimizer has a function that moves a tensor as it is stored, which can be compiled whole."""
    return optimizer.optimizer == "adafactor" and not any(
        optimizer.optimizer_args.get(name) for name in ("foreach", "maximize")
    )
