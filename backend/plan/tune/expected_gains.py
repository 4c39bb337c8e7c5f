"""Says what each factor of a tune can be expected to save, so that few probes reach the promising ones first.

Shares of a step's seconds, rough, with what the factor makes room for. They are of the rows of docs/benchmarks.md that
each function names: taken on H200s, with 12 blocks of FLUX's width where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backend.config.family_defaults import shape_mode_of
from backend.config.graph_choice import recording_of
from backend.config.schema import Config
from backend.plan.memory.machine import PRODUCT_CAPABILITY

_EAGER_COSTS = 0.3
_TWELVE = (12, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What choices and their gains depend on beside the settings."""

    on_gpu: bool
    capability: tuple[int, int] | None = None
    """Compute capability of the GPU; None where that is not known."""
    blocks: int | None
    """Blocks of the denoiser; None where the base model can't be read."""
    attention: str = ""
    """The kernel that the best settings so far computed attention with; "" before that was seen."""
    warm_up: float = 0.0
    """Share of the best finish time so far that compiling takes, the cache filled; 0 before that was measured."""
    by_class: bool = False
    """Each block class is left out of compiling once, to know what compiling it saves."""
    short: bool = False
    """The settings don't fit: more swap is a choice too."""


def product_kinds(around: Surroundings) -> Iterator[str]:
    """The 8-bit products that the machine can compute, the faster first."""
    # from 12.0 on, plain fp8 instructions run at half rate
    new = around.capability is not None and around.capability >= _TWELVE
    for kind in ("int8", "fp8") if new else ("fp8", "int8"):
        if around.capability is None or around.capability >= PRODUCT_CAPABILITY[kind]:
            yield kind


def of_compile(cfg: Config, around: Surroundings) -> float:
    """1.4 to 1.85 times eager's speed; without it a run saves at most what compiling takes."""
    return _EAGER_COSTS if not cfg.compile.compile else around.warm_up - _EAGER_COSTS


def of_products(cfg: Config, around: Surroundings) -> float:
    """fp8 1.13 to 1.18 times bf16's speed, and half the bytes, which swap and checkpointing then need not spare."""
    if not around.on_gpu or not list(product_kinds(around)):
        return -1.0
    if cfg.memory.base_compute != "bf16":
        return 0.05
    return 0.15 + of_swap(cfg, around) + of_checkpointing(cfg, around)


def of_swap(cfg: Config, around: Surroundings) -> float:
    """34 of 57 blocks swapped cost 7 to 14 % of FLUX's step at its full size; more on a slower bus."""
    return 0.15 if cfg.memory.blocks_to_swap else 0.0


def of_checkpointing(cfg: Config, around: Surroundings) -> float:
    """97.9 ms with, 73.9 without."""
    return 0.25 if cfg.training.gradient_checkpointing else 0.0


def of_recording(cfg: Config, around: Surroundings) -> float:
    """2 to 5 % of FLUX, and four fifths of SDXL, whose small kernels wait for the processor; auto tries it itself."""
    return {"off": 0.12, "auto": 0.03, "on": 0.0}[recording_of(cfg)] if around.on_gpu else -1.0


def of_attention(cfg: Config, around: Surroundings) -> float:
    """FlashAttention 4 spares 16 % of what torch's own kernel takes; auto has measured all kernels already."""
    return 0.1 if cfg.compile.attention != "auto" else 0.01


def of_batch(cfg: Config, around: Surroundings) -> float:
    """A larger batch fills the GPU better than accumulation; a smaller one seldom gains."""
    return 0.1 if cfg.training.gradient_accumulation_steps > 1 else 0.0


def of_base(cfg: Config, around: Surroundings) -> float:
    """Weights in 8 or 4 bits alone cost time, since they are converted for each product, but may spare swap."""
    if cfg.memory.base_quantization != "none":
        return 0.05
    return of_swap(cfg, around) / 2


def of_shapes(cfg: Config, around: Surroundings) -> float:
    """Where blocks are compiled, sizes that are neither padded nor open compile again and again."""
    return 0.05 if cfg.compile.compile and shape_mode_of(cfg) == "off" else 0.0
