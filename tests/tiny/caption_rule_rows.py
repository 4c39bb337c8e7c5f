"""Settings that break the rules about captions, masks and augmentation."""

from __future__ import annotations

from tests.tiny.rule_values import Values

CAPTION_ROWS: list[tuple[Values, str, str]] = [
    (
        {"dataset.folders": [{"path": "b"}, {"path": "a", "is_reg": True, "trigger_word": "x"}]},
        "dataset.folders[1].trigger_word",
        "no effect",
    ),
    ({"captions.keep_tokens": 1}, "captions.keep_tokens", "neither shuffled nor dropped"),
    ({"masks.unmasked_weight": 0.1}, "masks.unmasked_weight", "no folder has masks"),
    ({"masks.unmasked_probability": 0.1}, "masks.unmasked_probability", "no folder has masks"),
    ({"masks.normalize_masked_area_loss": False}, "masks.normalize_masked_area_loss", "no folder has masks"),
    ({"masks.unmasked_weight": 1.0, "masks.alpha_mask": True}, "masks.unmasked_weight", "masks have no effect"),
    *(
        (
            {
                f"augmentation.{name}": value,
                "model.family": "flux_kontext",
                "dataset.folders": [{"path": "a", "control_path": "b"}],
            },
            f"augmentation.{name}",
            "stay as they are",
        )
        for name, value in (("flip_aug", True), ("random_crop", True), ("color_jitter", 0.1))
    ),
    ({"augmentation.image_variants": 3}, "augmentation.image_variants", "neither cropped nor colored"),
    (
        {"augmentation.image_variants": 1, "augmentation.color_jitter": 0.1},
        "augmentation.image_variants",
        "always the same",
    ),
    ({"captions.caption_separator": ";"}, "captions.caption_separator", "neither shuffled nor dropped"),
    ({"captions.caption_variants": 3}, "captions.caption_variants", "neither shuffled nor dropped"),
    ({"captions.caption_tag_dropout_rate": 1.0}, "captions.caption_tag_dropout_rate", "every tag is dropped"),
    (
        {"captions.caption_separator": "|", "captions.secondary_separator": "|"},
        "captions.caption_separator",
        "the same text",
    ),
]
