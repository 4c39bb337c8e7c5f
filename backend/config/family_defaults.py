"""Resolves settings that are left to the model family. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from backend.families.table import family

if TYPE_CHECKING:
    from backend.config.schema import Config

ShapeMode = Literal["static", "exact_buckets", "dynamic", "off"]
SHAPE_MODES: tuple[ShapeMode, ...] = get_args(ShapeMode)
"""From fewest graphs to most."""


def usual_shape_mode(name: str) -> ShapeMode:
    """The shape mode of fewest graphs that the family `name` can have; ValueError for an unknown family."""
    lacking = family(name).lacks_modes
    return next(mode for mode in SHAPE_MODES if mode not in lacking)


def shape_mode_of(cfg: Config) -> ShapeMode:
    """The shape mode of a run: the one set, or with auto the family's usual one."""
    mode = cfg.compile.shape_mode
    return usual_shape_mode(cfg.model.family) if mode == "auto" else mode
