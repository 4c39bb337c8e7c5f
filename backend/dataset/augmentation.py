"""Makes versions of how an image comes to its bucket: mirrored, another part of it, other colours; and draws one.

A version follows from its number and the image alone, so that the cache of latents serves runs of every seed.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from PIL import Image, ImageEnhance

from backend.dataset.buckets import Fit
from backend.dataset.items import Item

if TYPE_CHECKING:
    from backend.config.schema import Config

# Less than this, in px of the picture, is rounding and no room to move a crop in.
_ROOM_PX = 1.0
_COLOURS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageDraw:
    """Which version of an image is trained at each time; the fields have the names of the settings.

    seed: of the run.
    """

    flip_aug: bool = False
    random_crop: bool = False
    color_jitter: float = 0.0
    image_variants: int = 4
    seed: int = 0

    @classmethod
    def of(cls, cfg: Config) -> ImageDraw:
        """As the settings say it."""
        return cls(**cfg.augmentation.model_dump(), seed=cfg.training.seed)

    def count(self, item: Item, fit: Fit) -> int:
        """How many versions of an image there are; 1 where it is always the same."""
        if self.color_jitter > 0 or (self.random_crop and max(_room(item, fit)) >= _ROOM_PX):
            return max(self.image_variants, 2 if self.flip_aug else 1)
        return 2 if self.flip_aug else 1

    def version(self, item: Item, fit: Fit, number: int) -> Fit:
        """Version `number` (from 0) of `fit`. Each second one is mirrored."""
        digest = hashlib.blake2b(f"image version:{number}:{item.key}".encode(), digest_size=8).digest()
        draw = random.Random(int.from_bytes(digest, "big")).random
        across, down = (draw() * room for room in _room(item, fit))
        box, colour = fit.box, None
        if self.random_crop:
            left, top, right, bottom = fit.box
            box = (across, down, across + right - left, down + bottom - top)
        if self.color_jitter > 0:
            colour = tuple(round(1 + self.color_jitter * (2 * draw() - 1), 4) for _ in _COLOURS)
        return replace(fit, box=box, flip=self.flip_aug and number % 2 == 1, colour=colour)

    def fits(self, item: Item, fit: Fit) -> list[Fit]:
        """All versions, each once; `fit` itself where there is one."""
        count = self.count(item, fit)
        if count == 1:
            return [fit]
        return list(dict.fromkeys(self.version(item, fit, number) for number in range(count)))

    def fit(self, item: Item, fit: Fit, epoch: int, place: int) -> Fit:
        """What is trained of `item` in row `place` of `epoch`, both from 0; follows from the arguments alone."""
        versions = self.fits(item, fit)
        if len(versions) == 1:
            return versions[0]
        digest = hashlib.blake2b(f"image:{self.seed}:{epoch}:{place}:{item.key}".encode(), digest_size=8).digest()
        return versions[int.from_bytes(digest, "big") % len(versions)]


def recoloured(picture: Image.Image, fit: Fit) -> Image.Image:
    """`picture`, cut to its bucket, mirrored and with other colours as `fit` says."""
    if fit.flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for enhance, factor in zip(_COLOURS, fit.colour or (), strict=False):
        picture = enhance(picture).enhance(factor)
    return picture


def _room(item: Item, fit: Fit) -> tuple[float, float]:
    """Px of the picture by which its crop can move, across and down."""
    left, top, right, bottom = fit.box
    return max(0.0, item.width - (right - left)), max(0.0, item.height - (bottom - top))
