"""Says what changing captions cost: how many are encoded, the bytes that they take, and about how long it lasts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from backend.base.files import human_bytes
from backend.dataset.items import Finding, count_of
from backend.families.spec import FamilyFacts
from backend.plan.memory.parts import Parts, numbers
from backend.plan.plan import Plan

if TYPE_CHECKING:
    from backend.config.schema import Config

# What text encoders reach on a GPU of the field, one caption at a time: operations a second.
_SPEED = 30e12
# Cached captions that are worth a warning.
_MANY_BYTES = 50e9


def variants(cfg: Config, plan: Plan, facts: FamilyFacts, parts: Parts | None) -> Iterable[Finding]:
    """The versions of captions that are encoded. parts: of the base model, without which their size is not known."""
    changing = [item for item in plan.items if item.texts]
    if not changing:
        return
    setting = "captions.caption_variants"
    if plan.captions.rule.fresh:
        text = f"The captions of {count_of(len(changing), 'image')} change; each time is a new version, encoded then"
        yield Finding("caption_variants", "note", text, "", (), setting)
        return
    # counted and not made: of 20,000 images that would take seconds, at each change of the form
    count = sum(map(plan.captions.rule.count, {item.texts for item in changing}))
    each, seconds = (0, 0.0) if parts is None else _cost(cfg, plan, facts, parts)
    size = each * count
    cost = f", about {human_bytes(size)} in the cache and {_time(seconds * count)} at 30 TFLOPS" if size else ""
    text = f"The captions of {count_of(len(changing), 'image')} change: up to {count:,} versions are encoded{cost}"
    much = size > _MANY_BYTES
    remedy = "Lower caption_variants to encode fewer." if much else ""
    yield Finding("caption_variants", "warning" if much else "note", text, remedy, (), setting)


def _cost(cfg: Config, plan: Plan, facts: FamilyFacts, parts: Parts) -> tuple[int, float]:
    """Bytes of an encoded caption, and seconds that one takes."""
    # the vocabulary is the matrix with the most rows; its other side is the width of what an encoder gives
    matrices = ([shape for shape in shapes.values() if len(shape) == 2] for shapes in parts.texts.values())
    widths = [max(each)[1] for each in matrices if each]
    # where chunks of fixed length are read, all encoders' states are put side by side
    width = (sum if facts.fixed_text_length else max)(widths) if widths else 0
    weights = sum(numbers(shapes.values()) for shapes in parts.texts.values())
    number = 4 if cfg.model.weight_dtype == "fp32" else 2
    return plan.text_tokens * width * number, 2 * weights * plan.text_tokens / _SPEED


def _time(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
