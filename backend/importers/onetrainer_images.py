"""Reads what OneTrainer changes in images and captions from time to time, and its masks."""

from __future__ import annotations

from typing import Any

from backend.importers.folder_values import Rows, take_for_all
from backend.importers.program import Fields
from backend.importers.values import is_off, number

NORMALIZED = "masks.normalize_masked_area_loss"
"""The setting that is taken wherever masks are on there."""
# Switch, its largest change, and whether we have such a change.
_COLOURS = ("brightness", "contrast", "saturation")
_HUE = "hue is not changed; brightness, contrast and saturation change by one share"


def read_masks(fields: Fields) -> None:
    """The settings of masks, which lie next to their images there."""
    names = {"unmasked_weight": 0.1, "unmasked_probability": 0.1, "normalize_masked_area_loss": False}
    if not fields.on("masked_training"):
        for name in ("masked_training", *names):
            fields.note(name, "off", "it is used only if masked_training is on")
        return
    fields.note("masked_training", "taken", "", "dataset.folders")
    for name, usual in names.items():
        value: Any = fields.get(name, usual)
        if name == "normalize_masked_area_loss":
            fields.take(name, NORMALIZED, not is_off(value))
        else:
            fields.take(name, f"masks.{name}", number(value))


def read_changes(fields: Fields, path: str, rows: Rows) -> None:
    """What the concepts at `path` change, of `rows` that stay. One value holds for all folders here."""
    _images(fields, path, rows)
    _captions(fields, path, rows)


def _images(fields: Fields, path: str, rows: Rows) -> None:
    variations = [number(row.get("image_variations", 1)) for _, row in rows]
    caches = _caches(fields, "image_caching")
    changing = [row for row, count in zip(rows, variations, strict=True) if count != 1 or not caches]
    names = ("enable_random_flip", "enable_crop_jitter", *(f"enable_random_{colour}" for colour in _COLOURS))
    if not changing:
        # its cache then keeps one version of each image, whatever is random
        for name in (*names, *(f"random_{colour}_max_strength" for colour in _COLOURS)):
            fields.note(f"{path}[].image.{name}", "not needed", "with one image variation each image stays the same")
        fields.note(f"{path}[].image_variations", "taken")
        return
    count = len(rows)
    take_for_all(fields, path, changing, "image.enable_random_flip", "augmentation.flip_aug", bool, folders=count)
    take_for_all(fields, path, changing, "image.enable_crop_jitter", "augmentation.random_crop", bool, folders=count)
    strengths = []
    for colour in _COLOURS:
        on = [row for _, row in changing if not is_off(row.get(f"image.enable_random_{colour}"))]
        strengths += [number(row.get(f"image.random_{colour}_max_strength", 0.0)) for row in on]
        for name in (f"enable_random_{colour}", f"random_{colour}_max_strength"):
            fields.note(f"{path}[].image.{name}", "near" if on else "off", _HUE if on else "")
    strengths = [min(0.9, each) for each in strengths if isinstance(each, int | float)]
    if any(strengths):
        fields.work.take("augmentation.color_jitter", max(strengths), f"{path}[].image.random_brightness_max_strength")
    if caches and (any(strengths) or fields.work.ours.get("augmentation.random_crop")):
        take_for_all(fields, path, changing, "image_variations", "augmentation.image_variants")
    fields.note(f"{path}[].image_variations", "taken")


def _captions(fields: Fields, path: str, rows: Rows) -> None:
    shuffled = take_for_all(fields, path, rows, "text.enable_tag_shuffling", "captions.shuffle_caption", bool)
    dropping = [row for row in rows if not is_off(row[1].get("text.tag_dropout_enable"))]
    whole = [row for row in dropping if str(row[1].get("text.tag_dropout_mode", "FULL")).upper() == "FULL"]
    single = [row for row in dropping if row not in whole]
    probability = "text.tag_dropout_probability"
    if whole:
        take_for_all(fields, path, whole, probability, "dataset.caption_dropout_rate", folders=len(rows))
    if single:
        near = "every tag is dropped as often as any other"
        goal = "captions.caption_tag_dropout_rate"
        take_for_all(fields, path, single, probability, goal, number, near, folders=len(rows))
    for name in ("text.tag_dropout_enable", "text.tag_dropout_mode", probability):
        fields.note(f"{path}[].{name}", "taken" if dropping else "off")
    kept = shuffled or bool(single)
    for name, goal, value in (
        ("text.keep_tags_count", "captions.keep_tokens", number),
        ("text.tag_delimiter", "captions.caption_separator", str),
        *([("text_variations", "captions.caption_variants", number)] if _caches(fields, "text_caching") else []),
    ):
        if kept and any(not is_off(row.get(name)) for _, row in rows):
            take_for_all(fields, path, rows, name, goal, value)
        fields.note(f"{path}[].{name}", "off", "" if kept else "tags are neither shuffled nor dropped")
    fields.note(f"{path}[].text_variations", "off", "each time is a new version there")


def _caches(fields: Fields, part: str) -> bool:
    """Whether versions are kept there; else each time is a new one, however many it names. part: its newer switch."""
    return not any(is_off(fields.get(name, True)) for name in ("latent_caching", part))
