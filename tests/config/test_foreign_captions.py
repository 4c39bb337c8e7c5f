"""Settings of other programs about changing captions, masks and augmentation, each as it trains there."""

from __future__ import annotations

import json
from typing import Any

import pytest
import toml
import yaml

from backend.config.schema import Config, get
from backend.importers.convert import Converted, convert
from backend.importers.source import read_raw

SDXL = {"network_module": "networks.lora", "pretrained_model_name_or_path": "sd_xl_base_1.0.safetensors"}


def brought(values: dict[str, Any] | str, dataset: dict[str, Any] | None = None) -> Converted:
    text = values if isinstance(values, str) else toml.dumps(values)
    beside = read_raw(toml.dumps(dataset).encode()) if dataset else None
    converted = convert(read_raw(text.encode()), beside)
    assert converted.loaded.config is not None and not converted.loaded.errors, converted.loaded.problems
    return converted


def holds(converted: Converted, values: dict[str, Any]) -> None:
    config = converted.loaded.config
    assert config is not None and {path: get(config, path) for path in values} == values


def first(converted: Converted) -> dict[str, Any]:
    """What the first folder says besides its path."""
    config = converted.loaded.config
    assert isinstance(config, Config)
    return config.dataset.folders[0].model_dump(exclude_defaults=True, exclude={"path"})


TAGS = {
    "shuffle_caption": True, "keep_tokens": 2, "keep_tokens_separator": "|||", "caption_separator": ";",
    "secondary_separator": ";;;", "caption_tag_dropout_rate": 0.1, "enable_wildcard": True,
}  # fmt: skip


def test_sd_scripts() -> None:
    folder = {"image_dir": "/a", "caption_prefix": "by me,", "caption_suffix": "best", "metadata_file": "/m.json",
              "conditioning_data_dir": "/masks"}  # fmt: skip
    changes = {"flip_aug": True, "color_aug": True, "random_crop": True}
    data = {"general": {**TAGS, **changes}, "datasets": [{"subsets": [folder]}]}
    converted = brought({**SDXL, "masked_loss": True}, data)
    holds(converted, {f"captions.{name}": value for name, value in TAGS.items()})
    holds(converted, {
        "captions.caption_lines": True, "augmentation.flip_aug": True, "augmentation.random_crop": True,
        "augmentation.color_jitter": 0.05, "masks.normalize_masked_area_loss": False,
    })  # fmt: skip
    assert first(converted) == {
        "caption_prefix": "by me,", "caption_suffix": "best", "metadata_file": "/m.json", "mask_path": "/masks"
    }  # fmt: skip
    # without its switch the folder of masks is not read there either
    assert "mask_path" not in first(brought(SDXL, data))
    arguments = {**SDXL, "train_data_dir": "/a", "caption_prefix": "by me,", "in_json": "/m.json", "alpha_mask": True}
    converted = brought(arguments)
    assert first(converted) == {"caption_prefix": "by me,", "metadata_file": "/m.json"}
    holds(converted, {"masks.alpha_mask": True, "masks.normalize_masked_area_loss": False})
    notes = {note.key: note.fate for note in brought({**SDXL, "masked_loss": True, "in_json": ""}).notes}
    assert notes["masked_loss"] == "near" and notes["in_json"] == "off"


def test_onetrainer() -> None:
    images = {"enable_random_flip": True, "enable_crop_jitter": True, "enable_random_contrast": True,
              "random_contrast_max_strength": 0.2}  # fmt: skip
    text = {"enable_tag_shuffling": True, "keep_tags_count": 3, "tag_delimiter": ",", "tag_dropout_enable": True,
            "tag_dropout_mode": "RANDOM", "tag_dropout_probability": 0.25}  # fmt: skip
    concept = {"path": "/a", "image_variations": 5, "text_variations": 6, "image": images, "text": text}
    base = {"training_method": "LORA", "model_type": "FLUX_DEV_1", "masked_training": True, "unmasked_weight": 0.2}
    converted = brought(json.dumps({**base, "concepts": [concept]}))
    holds(converted, {
        "captions.shuffle_caption": True, "captions.keep_tokens": 3, "captions.caption_tag_dropout_rate": 0.25,
        "captions.caption_variants": 6, "augmentation.flip_aug": True, "augmentation.random_crop": True,
        "augmentation.color_jitter": 0.2, "augmentation.image_variants": 5, "masks.unmasked_weight": 0.2,
        "masks.unmasked_probability": 0.1, "masks.normalize_masked_area_loss": False,
    })  # fmt: skip
    assert first(converted) == {"mask_path": "/a"}
    other = {"path": "/b", "image_variations": 1, "text": {"enable_tag_shuffling": True}}
    notes = brought(json.dumps({**base, "concepts": [concept, other]})).notes
    for name in ("enable_random_flip", "tag_dropout_probability"):
        assert any("folders differ" in note.why for note in notes if note.key.endswith(name)), name
    still = {**concept, "image_variations": 1, "text": {**text, "tag_dropout_mode": "FULL"}}
    converted = brought(json.dumps({**base, "masked_training": False, "concepts": [still]}))
    drawn = brought(json.dumps({**base, "latent_caching": False, "concepts": [{**still, "text_variations": 1}]}))
    holds(drawn, {"augmentation.flip_aug": True, "augmentation.image_variants": 4, "captions.caption_variants": 8})
    # one version of each image is cached there, and whole captions are dropped
    holds(converted, {
        "augmentation.flip_aug": False, "augmentation.color_jitter": 0.0, "dataset.caption_dropout_rate": 0.25,
        "captions.caption_tag_dropout_rate": 0.0, "masks.unmasked_weight": 0.0,
    })  # fmt: skip
    assert first(converted) == {}


def test_ai_toolkit() -> None:
    folder = {"folder_path": "/a", "shuffle_tokens": True, "keep_tokens": 1, "token_dropout_rate": 0.1, "flip_x": True,
              "random_crop": True, "mask_path": "/m", "mask_min_value": 0.1, "alpha_mask": True}  # fmt: skip
    process = {"type": "sd_trainer", "datasets": [folder, {"folder_path": "/b"}], "network": {"type": "lora"},
               "model": {"name_or_path": "/flux", "is_flux": True}, "train": {"steps": 10}}  # fmt: skip
    converted = brought(yaml.safe_dump({"job": "extension", "config": {"name": "x", "process": [process]}}))
    holds(converted, {
        "captions.shuffle_caption": True, "captions.keep_tokens": 1, "captions.caption_tag_dropout_rate": 0.1,
        "augmentation.flip_aug": True, "augmentation.random_crop": True, "masks.unmasked_weight": 0.1,
        "masks.alpha_mask": True,
    })  # fmt: skip
    assert first(converted) == {"mask_path": "/m"}
    (reason,) = {note.why for note in converted.notes if note.key.endswith("shuffle_tokens") and note.why}
    assert "folders differ" in reason


@pytest.mark.parametrize("outer", [True, False])
def test_diffusion_pipe(outer: bool) -> None:
    texts = {"caption_prefix": "by me, ", "cache_shuffle_num": 4, "cache_shuffle_delimiter": ", "}
    row = {"path": "/a", "mask_path": "/m", **({} if outer else texts)}
    data = {"resolutions": [512], "directory": [row], **(texts if outer else {})}
    converted = brought(data)
    holds(converted, {"captions.shuffle_caption": True, "captions.caption_variants": 4})
    assert first(converted) == {"mask_path": "/m", "caption_prefix": "by me, "}
