"""Computes the sizes of control pictures: as latents with their result, and as the text encoder reads them.

Most families cut each to the size of its result. Those that take several keep the proportions of each, at an area of
the model's own (diffusers `QwenImageEditPlusPipeline`, ``calculate_dimensions``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backend.dataset.buckets import Bucket, Fit, fit_to
from backend.dataset.items import Item, Window
from backend.families.spec import Controls, FamilyFacts, Geometry, VideoRule

if TYPE_CHECKING:
    from backend.config.schema import Config

Cut = tuple[Item, Fit]
"""A picture and how it comes to its bucket."""

Size = tuple[int, int]
"""Width and height in px."""


@dataclass(frozen=True)
class References:
    """The control pictures of a run: the family's `rule`, with the run's own area where one is set.

    video: how the family makes clips; where one starts from a picture, it is in the clip's own tokens. In the methods
    `result` is the size of the picture that is made from them; read: as the text encoder reads them.
    """

    rule: Controls
    geometry: Geometry
    video: VideoRule | None = None

    @classmethod
    def of(cls, cfg: Config, facts: FamilyFacts, geometry: Geometry) -> References:
        """Those of a run of `cfg` with a model of the family."""
        rule, area = facts.controls or Controls(), cfg.dataset.control_resolution
        rule = rule if area is None or rule.area is None else replace(rule, area=area)
        return cls(rule, geometry, facts.video)

    def sizes(self, controls: Sequence[Size], result: Size, *, read: bool = False) -> list[Size]:
        """Sizes that control pictures of sizes `controls` come to."""
        area = (self.rule.read_area or self.rule.area) if read else self.rule.area
        if area is None:
            return [result] * len(controls)
        return [_of_area(area, width / height, self.rule.step) for width, height in controls]

    @property
    def starts(self) -> bool:
        """Whether a control picture is what a clip starts from."""
        return self.video is not None and self.video.starts

    def cuts(self, controls: Sequence[Item], result: Size, *, read: bool = False, frames: int = 1) -> tuple[Cut, ...]:
        """How each of `controls` comes to its size: with an area of its own it is never cropped.

        What a clip of `frames` starts from is a clip itself, in which the picture stands still.
        """
        fits = []
        for item, size in zip(controls, self.sizes(sizes_of(controls), result, read=read), strict=True):
            if self.starts:
                item = replace(item, window=Window(0.0, frames, 0.0))
            bucket = Bucket(*size, self.geometry.image_tokens(*size))
            fit = fit_to(item.width, item.height, bucket)
            if self.rule.area is not None:
                fit = replace(fit, box=(0.0, 0.0, float(item.width), float(item.height)), crop=0.0)
            fits.append((item, fit))
        return tuple(fits)

    def tokens(self, controls: Sequence[Size], result: Size) -> int:
        """Image tokens of control pictures of sizes `controls`, all together."""
        if self.video is not None:
            return 0
        return sum(self.geometry.image_tokens(*size) for size in self.sizes(controls, result))


def sizes_of(controls: Sequence[Item]) -> list[Size]:
    """Width and height in px of each."""
    return [(control.width, control.height) for control in controls]


def _of_area(area: int, ratio: float, step: int) -> Size:
    """Sides in multiples of `step` px, width to height as `ratio`, at the area of a square of side `area`."""
    width = math.sqrt(area * area * ratio)
    return max(step, round(width / step) * step), max(step, round(width / ratio / step) * step)
