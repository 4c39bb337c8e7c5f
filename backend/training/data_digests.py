"""Says in digests what a run is trained on, by what a person may change: images, captions, masks, augmentation."""

from __future__ import annotations

import hashlib
from typing import Any

from backend.config.declare import Section
from backend.config.schema import Config
from backend.dataset.items import Item
from backend.plan.plan import Plan

_CAPTIONS = ("caption_dropout_rate", "caption_dropout_every_n_epochs")
"""Settings of [dataset] that change captions."""


def data_digests(cfg: Config, plan: Plan) -> dict[str, str]:
    """Name, as it is told -> digest; "" where there are no masks, or nothing is changed in images.

    Settings at their defaults are in none: one that a later version adds changes no digest.
    """
    items = plan.items
    versions = any(item.texts for item in items)
    augmentation = cfg.augmentation
    changes = augmentation.flip_aug or augmentation.random_crop or augmentation.color_jitter
    return {
        "images": _digest([_image(item) for item in items]),
        "captions": _digest(
            [
                *([item.caption, item.texts, item.trigger if item.texts else None] for item in items),
                [_chosen(cfg.dataset).get(name) for name in _CAPTIONS],
                _chosen(cfg.captions) if versions else None,
            ]
        ),
        "masks": _digest([*(None if item.mask is None else item.mask.key for item in items), _chosen(cfg.masks)])
        if any(item.mask for item in items)
        else "",
        "augmentation": _digest(_chosen(augmentation)) if changes else "",
    }


def _image(item: Item) -> list[Any]:
    controls = [control.key for control in item.controls]
    return [item.key, item.repeats, controls, None if item.window is None else item.window.to_dict(), item.is_reg]


def _chosen(section: Section) -> dict[str, Any]:
    return section.model_dump(exclude_defaults=True)


def _digest(values: Any) -> str:
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
