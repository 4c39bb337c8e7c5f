"""Lists rules about masks and augmentation."""

from __future__ import annotations

from typing import Any

from backend.config.rules.rule import Rule
from backend.config.schema import by_path

_FOLDERS = "dataset.folders"
_CHANGES = ("augmentation.flip_aug", "augmentation.random_crop", "augmentation.color_jitter")


def _needs_mask(path: str) -> Rule:
    """A warning when a setting about masks is set, and no image has one."""
    name, default = path.rsplit(".", 1)[1], by_path()[path].default

    def broken(value: Any, alpha: bool, *folders: list[Any]) -> bool:
        return value != default and not alpha and not any(folder.mask_path for rows in folders for folder in rows)

    return Rule(
        (path, "masks.alpha_mask", _FOLDERS, "validation.validation_folders"),
        broken,
        f"{name} has no effect: no folder has masks",
        f"Set mask_path in a row of dataset.folders, or masks.alpha_mask to true, or remove {name}",
        "warning",
    )


def _needs_same_controls(path: str) -> Rule:
    """An error where an image would be changed and its control image not."""
    name = path.rsplit(".", 1)[1]
    return Rule(
        (path, _FOLDERS),
        lambda value, folders: bool(value) and any(folder.control_path for folder in folders),
        f"{name} changes images, and their control images stay as they are",
        f"Remove {name}, or control_path",
    )


MASK_RULES: tuple[Rule, ...] = (
    _needs_mask("masks.unmasked_weight"),
    _needs_mask("masks.unmasked_probability"),
    _needs_mask("masks.normalize_masked_area_loss"),
    Rule(
        ("masks.unmasked_weight", "masks.alpha_mask", _FOLDERS),
        lambda weight, alpha, folders: weight == 1 and (alpha or any(folder.mask_path for folder in folders)),
        "masks have no effect: what is outside of them counts as much as what is inside",
        "Set unmasked_weight to 0.1 or less, or remove the masks",
        "warning",
    ),
    *map(_needs_same_controls, _CHANGES),
    Rule(
        ("augmentation.image_variants", "augmentation.random_crop", "augmentation.color_jitter"),
        lambda count, crop, jitter: (
            count != by_path()["augmentation.image_variants"].default and not crop and not jitter
        ),
        "image_variants has no effect: images are neither cropped nor colored at random",
        "Set augmentation.random_crop to true, or augmentation.color_jitter above 0, or remove image_variants",
        "warning",
    ),
    Rule(
        ("augmentation.image_variants", "augmentation.random_crop", "augmentation.color_jitter"),
        lambda count, crop, jitter: count == 1 and (crop or bool(jitter)),
        "with one variant an image is always the same",
        "Set image_variants to 2 or more",
        "warning",
    ),
)
