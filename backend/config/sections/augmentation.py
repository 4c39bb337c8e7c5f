"""Declares [augmentation]: images that are mirrored, cropped or coloured otherwise from time to time."""

from __future__ import annotations

from backend.config.declare import Section, setting


class AugmentationSection(Section):
    """What is changed in an image from time to time. Each version is encoded once and kept."""

    flip_aug: bool = setting(
        False,
        label="Mirror images",
        help="Half of the time an image is mirrored left to right, with its mask. Not for faces that are known by one "
        "side, writing, or captions that say left and right. Doubles the cached images.",
        aliases=("flip_x", "random_flip", "enable_random_flip", "horizontal_flip"),
    )
    random_crop: bool = setting(
        False,
        label="Random crop",
        help="Where an image is longer than its bucket, another part of it is used each time, in place of the middle.",
        aliases=("crop_jitter", "enable_crop_jitter"),
    )
    color_jitter: float = setting(
        0.0,
        ge=0,
        le=0.9,
        label="Color jitter",
        help="Brightness, contrast and saturation change each time by up to this share: 0.05 is hardly seen, 0.2 is "
        "strong. 0 is off. Not for a style, whose colors would be learned less exactly.",
        aliases=("color_aug", "color_augmentation"),
    )
    image_variants: int = setting(
        4,
        ge=1,
        le=100,
        unit="variants",
        label="Image variants",
        help="So many versions of each image are encoded with random crop or color jitter. More take more disk space "
        "and time before the first step; the plan shows how much. Mirroring alone needs two.",
        aliases=("num_image_variants",),
    )
