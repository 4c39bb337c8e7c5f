"""Computes what an image looks like in a few bytes: a grey image of 9 x 9 px, by which near-duplicates are found."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

SIDE = 9
# The image is made this large first, so that what follows costs the same for any size.
_SMALL = 72
# Up to this brightness a mean may hide a few bright pixels, and all are looked at.
_DARK = 1
# Modes whose pixels can be averaged as they are, without a copy of the whole image.
_PLAIN = ("RGB", "L", "CMYK", "YCbCr")


@dataclass(frozen=True, slots=True)
class Look:
    """grey: 81 bytes, rows of 9 px from 0 to 255, turned by EXIF. peak: the brightest value; exact where it is dark."""

    grey: bytes
    peak: int


def look_at(image: Image.Image, turn: Image.Transpose | None) -> Look:
    """The look of a decoded image of 8 bits. turn: as EXIF turns it."""
    plain = image if image.mode in _PLAIN else image.convert("L")
    small = plain.resize((_SMALL, _SMALL), Image.Resampling.BOX).convert("L")
    small = small if turn is None else small.transpose(turn)
    peak = _brightest(small)
    if peak <= _DARK:
        peak = _brightest(plain.convert("L"))
    return Look(small.resize((SIDE, SIDE), Image.Resampling.BOX).tobytes(), peak)


def _brightest(grey: Image.Image) -> int:
    extrema = grey.getextrema()
    assert isinstance(extrema[1], int)
    return extrema[1]
