"""Compares what the configs of a base model's parts say: whether they belong together. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.base.problems import Problem
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import SETTING
from backend.families.files.parts import Part

Pair = tuple[str, int | None, str, int | None]
"""Name and value, twice; None where a config doesn't say."""

# What says the levels of a VAE, how many of them halve the sides, and what says the channels of its latent.
_VAES = {
    "AutoencoderKL": ("block_out_channels", -1, "latent_channels"),
    "AutoencoderKLHunyuanVideo": ("block_out_channels", -1, "latent_channels"),
    "AutoencoderKLQwenImage": ("temperal_downsample", 0, "z_dim"),
    "AutoencoderKLWan": ("temperal_downsample", 0, "z_dim"),
}


def config_of(base: BaseModelFiles, part: Part) -> dict[str, Any]:
    """Config of a part, or {} where it is missing or can't be read: the check has said so already."""
    if base.place(part) is None:
        return {}
    try:
        return base.config(part)
    except (OSError, ValueError):
        return {}


def whole(config: Mapping[str, Any], key: str) -> int | None:
    """A whole number of a config; None when there is none."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def differing(pairs: Iterable[Pair], title: str) -> list[Problem]:
    """A problem for each pair whose values differ: parts that are each whole but of different models."""
    return [
        Problem(
            SETTING,
            None,
            f"parts of different models: {left_name} is {left}, {right_name} is {right}",
            f"Use both parts of the same {title} model.",
        )
        for left_name, left, right_name, right in pairs
        if left is not None and right is not None and left != right
    ]


def vae_cells(base: BaseModelFiles, vae: Part) -> tuple[int, int]:
    """Pixels a side of a latent cell, and the latent's channels; ValueError when the VAE's config gives neither."""
    config = config_of(base, vae)
    levels_name, more, channels_name = _VAES[vae.class_names[0]]
    levels, channels = config.get(levels_name), whole(config, channels_name)
    if not isinstance(levels, list) or not levels or channels is None:
        raise ValueError(f"the config of the VAE of {base.path} gives no {levels_name} and {channels_name}")
    # that of Wan 2.2 5B cuts the picture in patches before its first level
    return 2 ** (len(levels) + more) * (whole(config, "patch_size") or 1), channels
