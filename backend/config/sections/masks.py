"""Declares [masks]: which parts of an image count in the loss."""

from __future__ import annotations

from backend.config.declare import Section, setting


class MasksSection(Section):
    """What counts of images with a mask: of a mask folder (mask_path of a folder), or their own transparency."""

    alpha_mask: bool = setting(
        False,
        label="Transparency is the mask",
        help="Of an image with transparent parts, the opaque parts are trained and the transparent parts count as "
        "outside of the mask. A mask in the folder's mask folder counts before this.",
        aliases=("use_alpha_mask", "alpha_channel_mask"),
    )
    unmasked_weight: float = setting(
        0.0,
        ge=0,
        le=1,
        label="Weight outside of the mask",
        help="How much the parts outside of a mask (black in the mask) count in the loss, compared with 1 inside. "
        "0: not at all. 0.1 keeps the rest of the image from drifting.",
        aliases=("mask_min_value", "masked_min_value", "background_weight"),
    )
    unmasked_probability: float = setting(
        0.0,
        ge=0,
        le=1,
        unit="share",
        label="Share of steps without mask",
        help="How often an image with a mask is trained as a whole, so that the model also learns where the masked "
        "part lies in the image.",
        aliases=("unmasked_rate",),
        advanced=True,
    )
    normalize_masked_area_loss: bool = setting(
        True,
        label="Same loss for each mask size",
        help="The loss is the mean over what the mask shows, so that an image counts the same whether its mask is "
        "large or small. Off: a small mask gives a small loss.",
        aliases=("normalize_mask", "mask_normalize"),
        advanced=True,
    )
