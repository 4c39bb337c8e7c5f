"""Says how masks count, and what the versions of images cost: latents that are encoded, and the bytes they take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from backend.base.files import human_bytes
from backend.dataset.items import Finding, count_of
from backend.plan.plan import Plan

if TYPE_CHECKING:
    from backend.config.schema import Config

_FLOAT32 = 4
# Cached latents that are worth a warning.
_MANY_BYTES = 50e9


def masks(cfg: Config, plan: Plan) -> Iterable[Finding]:
    """What counts of images with a mask."""
    count = sum(item.mask is not None for item in plan.items)
    if not count:
        return
    rule = cfg.masks
    has = "has a mask" if count == 1 else "have a mask"
    outside = f"counts {rule.unmasked_weight:g} times" if rule.unmasked_weight else "does not count"
    text = f"{count_of(count, 'image')} {has}: what is outside {outside}"
    if rule.unmasked_probability:
        text += f", and {rule.unmasked_probability:.0%} of the time all of it".replace("%", " %")
    whole = "the mean over what counts, so that large and small masks weigh the same"
    text += f"; the loss is {whole if rule.normalize_masked_area_loss else 'smaller for a small mask'}"
    if plan.validation or plan.measures_each:
        text += "; validation losses and losses of images go by their masks too"
    yield Finding("masks", "note", text, "", (), "masks.unmasked_weight")


def variants(plan: Plan) -> Iterable[Finding]:
    """The versions of images that are encoded."""
    counts = [plan.images.count(item, fit) for item, fit in zip(plan.items, plan.fits, strict=True)]
    if all(count == 1 for count in counts):
        return
    if plan.images.random_crop or plan.images.color_jitter:
        # what is measured is encoded as it is, too
        for number in plan.measured:
            counts[number] += counts[number] > 1
    geometry = plan.geometry
    cells = [fit.bucket.tokens * geometry.patch**2 for fit in plan.fits]
    size = sum(c * n for c, n in zip(cells, counts, strict=True)) * geometry.latent_channels * _FLOAT32
    text = (
        f"{sum(counts):,} latents of {count_of(len(counts), 'image')} are encoded, with their versions: "
        f"about {human_bytes(size)} in the cache, and {sum(counts) / len(counts):.1f} times as long"
    )
    much = size > _MANY_BYTES
    remedy = "Lower image_variants to encode fewer." if much else ""
    setting = "augmentation.image_variants"
    yield Finding("image_variants", "warning" if much else "note", text, remedy, (), setting)
