"""Describes what a run trains, for its memory: a LoRA, or the denoiser's own weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.base.errors import Refused
from backend.config.layer_patterns import trained_names
from backend.families.spec import FamilyFacts
from backend.plan.memory.activations import Work, convolutions_kept
from backend.plan.memory.optimizer_bytes import kernel_bytes, rows_and_columns, trained_bytes
from backend.plan.memory.parts import Parts
from backend.plan.memory.settings import MemorySettings
from backend.plan.memory.swap import device_bytes
from backend.plan.memory.text import TrainedText, trained_text

if TYPE_CHECKING:
    from backend.config.schema import Config


@dataclass(frozen=True)
class Trained:
    """The LoRA, or the trained weights of the denoiser."""

    bytes: Mapping[str, int]
    """Of its weights, gradients, optimizer, ema."""
    layers: Mapping[str, frozenset[str]]
    """Block class -> paths within a block."""
    count: int
    """Numbers in its weights."""
    text: TrainedText
    """The text encoders, where they are trained."""
    around: int
    """Numbers a token that trained convolutions keep."""
    decomposed: bool = False
    """It is a DoRA, which keeps what its layers give."""
    aside: int = 0
    """Bytes of what is trained of the other expert, where two are trained by turns."""


def trained_in_full(cfg: Config, family: FamilyFacts, parts: Parts, settings: MemorySettings, work: Work) -> Trained:
    """What a run trains that trains the denoiser's own weights, whose bytes are counted with the denoiser's.

    Where the step is fused, gradients are freed as they come, all of a block at most. State of swapped blocks is in
    RAM but for what passes through a ring.
    """
    width, fused = settings.denoiser_width, settings.fused
    try:
        names = trained_names(parts.shapes, cfg.network.targets_include, cfg.network.targets_exclude)
    except Refused:
        # said where the weights are chosen
        names = list(parts.shapes)
    text = trained_text(cfg, family, parts, settings, work)
    shapes = [*(rows_and_columns(parts.shapes[name]) for name in names), *text.lora]
    optimizer = cfg.optimizer
    total = trained_bytes(optimizer.optimizer, shapes, optimizer.optimizer_args, ema=cfg.training.ema)
    layers = [path for name in names if (path := name.removesuffix(".weight")) in parts.denoiser.layers]
    by_class: dict[str, set[str]] = defaultdict(set)
    for path in layers:
        if path in parts.denoiser.places:
            kind, inner = parts.denoiser.places[path]
            by_class[kind].add(inner)
    frozen = {kind: frozenset(paths) for kind, paths in by_class.items()}
    around = convolutions_kept(parts.denoiser, family.memory, dict.fromkeys(layers, 0))
    count = sum(rows * columns for rows, columns in shapes)
    gradients = width * (_most_at_once(parts, shapes) if fused else count)
    total["optimizer"] += kernel_bytes(optimizer.optimizer, (parts.shapes[name] for name in names))
    # of parts that are trained alone, as if they were spread over all blocks
    share = sum(math.prod(parts.shapes[name]) for name in names) / max(1, sum(map(math.prod, parts.shapes.values())))
    streamed = [int(size * share) for size in settings.swapped_state(parts)]
    state = max(0, total["optimizer"] - sum(streamed)) + device_bytes(streamed, settings.ring)
    total |= {"weights": 0, "gradients": gradients, "optimizer": state}
    return Trained(total, frozen, count, text, around)


def _most_at_once(parts: Parts, shapes: Sequence[tuple[int, int]]) -> int:
    """Numbers in the gradients that are there together: a compiled block's come all at once, others one by one."""
    blocks = (block.weights + block.other for block in parts.denoiser.blocks)
    return max([*blocks, *(rows * columns for rows, columns in shapes)], default=0)
