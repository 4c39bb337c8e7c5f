"""Estimates what trained text encoders add to the denoiser: weights, their LoRA, roughly what they compute with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backend.config.layer_patterns import factor_shapes
from backend.families.spec import FamilyFacts
from backend.plan.caption_draw import trains_text
from backend.plan.memory.activations import Work
from backend.plan.memory.optimizer_bytes import rows_and_columns
from backend.plan.memory.parts import Parts
from backend.plan.memory.settings import MemorySettings
from backend.plan.memory.weight_bytes import total_bytes

if TYPE_CHECKING:
    from backend.config.schema import Config

KEPT, RECOMPUTED = 17, 1
"""Numbers a token and channel that a transformer's layer keeps for its backward pass (Korthikanti et al., arXiv
2205.05198), and that checkpointing leaves."""


@dataclass(frozen=True)
class TrainedText:
    """What trained text encoders add to a run. Sizes in bytes."""

    resident: Mapping[str, int] = field(default_factory=dict)
    """Part -> bytes on the GPU for the whole run."""
    lora: list[tuple[int, int]] = field(default_factory=list)
    """Shapes of what is trained."""
    activations: int = 0


def trained_text(cfg: Config, facts: FamilyFacts, parts: Parts, settings: MemorySettings, work: Work) -> TrainedText:
    """The text encoders of a run of `cfg` that puts `work` through; nothing where they are not trained."""
    if not trains_text(cfg, facts):
        return TrainedText()
    if settings.full_width is not None:
        return _whole(parts, settings, work, settings.full_width)
    network = cfg.network
    layers: list[tuple[int, int]] = []
    kept = weights = 0
    for shapes in parts.texts.values():
        weights += total_bytes(shapes, settings.text_format, settings.weight_width)
        # some classes have no text_model in front, and the pattern wants something there
        named = {f"te.{name.removesuffix('.weight')}": shape for name, shape in shapes.items() if len(shape) == 2}
        trained = {n: s for n, s in named.items() if any(re.fullmatch(t, n) for t in facts.text_targets)}
        layers += [(inner, outer) for outer, inner in trained.values()]
        widths = [inner for name, (_, inner) in trained.items() if name.endswith("q_proj")]
        once = max(widths, default=0) * KEPT
        kept += once if settings.way.checkpointing != "off" else 0
        kept += sum(widths) * (RECOMPUTED if settings.way.checkpointing != "off" else KEPT)
        if network.network_type == "dora" and settings.way.checkpointing == "off":
            kept += sum(outer for outer, _ in trained.values())
    tokens = work.batch * work.text
    resident = {"text_encoders": weights}
    kind, factor = network.network_type, network.lokr_factor
    lora = [shape for size in layers for shape in factor_shapes(kind, *size, settings.rank, factor).values()]
    return TrainedText(resident, lora, tokens * kept * settings.number.half)


def _whole(parts: Parts, settings: MemorySettings, work: Work, width: int) -> TrainedText:
    """All weights of the encoders, each `width` bytes."""
    checkpointing = settings.way.checkpointing != "off"
    kept = 0
    for shapes in parts.texts.values():
        widths = [shape[-1] for name, shape in shapes.items() if name.endswith("q_proj.weight")]
        kept += (max(widths, default=0) * KEPT if checkpointing else 0) + sum(widths) * (
            RECOMPUTED if checkpointing else KEPT
        )
    trained = [rows_and_columns(shape) for shapes in parts.texts.values() for shape in shapes.values()]
    resident = {"text_encoders": width * sum(rows * columns for rows, columns in trained)}
    return TrainedText(resident, trained, work.batch * work.text * kept * settings.number.half)
