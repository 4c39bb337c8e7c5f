"""Whether parts belong together: what their configs say, compared. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.base.problems import Problem
from backend.models import files
from backend.models.base import Base
from backend.models.spec import FamilyFacts, Geometry

Pair = tuple[str, int | None, str, int | None]
"""Name and value, twice; None where a config doesn't say."""


def config_of(base: Base, facts: FamilyFacts, part: str) -> dict[str, Any]:
    """Config of a part, or {} where it is missing or can't be read: the check has said so already."""
    if base.place(facts.part(part)) is None:
        return {}
    try:
        return base.config(facts.part(part))
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
            files.SETTING,
            None,
            f"parts of different models: {left_name} is {left}, {right_name} is {right}",
            f"Take both parts from the same {title} model.",
        )
        for left_name, left, right_name, right in pairs
        if left is not None and right is not None and left != right
    ]


def video_vae_geometry(base: Base, facts: FamilyFacts, patch: int) -> Geometry:
    """Geometry of a model with the VAE ``AutoencoderKLQwenImage``; ValueError when it can't be read."""
    vae = config_of(base, facts, "vae")
    levels, channels = vae.get("temperal_downsample"), whole(vae, "z_dim")
    if not isinstance(levels, list) or not levels or channels is None:
        raise ValueError(f"the config of the VAE of {base.path} gives no temperal_downsample and z_dim")
    return Geometry(downscale=2 ** len(levels), patch=patch, latent_channels=channels)
