"""Chooses the training pictures that are measured besides the validation pictures, always the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.dataset.items import DatasetScan, Item

if TYPE_CHECKING:
    from backend.config.schema import Config

TRAINING_SAMPLE = "training images"
"""Name of their set in events."""


def training_sample(cfg: Config, scan: DatasetScan) -> tuple[int, ...]:
    """Numbers of the training items to measure, in their order; none without validation pictures to compare with.

    Who is among them depends on each picture's content and the validation seed alone; of copies one is taken.
    """
    count, seed = cfg.validation.validate_training_images, cfg.validation.validation_seed
    if not count or not any(each.items for each in scan.validation.values()):
        return ()
    first: dict[str, int] = {}
    for number, item in enumerate(scan.train.items):
        # regularization images are not what is learned
        if not item.is_reg:
            first.setdefault(item.key, number)
    return tuple(sorted(first[key] for key in sorted(first, key=lambda key: _draw(seed, key))[:count]))


def identity_of(cfg: Config, items: Sequence[Item]) -> str:
    """Digest of what a validation loss is of: the pictures with captions and controls, noise levels and noise."""
    settings = cfg.validation
    parts = [
        settings.validation_sigmas,
        settings.validation_seed,
        settings.validation_repeats,
        cfg.model.guidance_scale,
    ]
    lines = [
        f"{item.key} {item.caption!r} {[control.key for control in item.controls]} "
        f"{None if item.window is None else item.window.to_dict()}"
        + ("" if item.mask is None else f" {item.mask.key} {cfg.masks.model_dump()}")
        for item in items
    ]
    text = "\n".join([repr(parts), *sorted(lines)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _draw(seed: int, key: str) -> str:
    return hashlib.sha256(f"measured:{seed}:{key}".encode()).hexdigest()
