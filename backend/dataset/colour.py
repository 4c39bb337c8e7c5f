"""Converts pictures from the colour profile in their file to sRGB, which the models were trained on.

LittleCMS computes it (Pillow's ImageCms), with relative colorimetric intent and black point compensation, as photo
editors do by default. A profile that is sRGB under another name changes nothing.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

from PIL import Image, ImageCms

UNUSABLE = "unusable"
# Channel values of the grid on which a profile is compared with sRGB, and the difference that counts as none.
_GRID = (0, 16, 32, 64, 96, 128, 160, 192, 224, 255)
_SAME = 2
# Picture modes that a profile of each colour space can describe.
_MODES = {"RGB ": ("RGB", "RGBA", "L", "LA"), "GRAY": ("L", "LA"), "CMYK": ("CMYK",)}


class BadProfile(ValueError):
    """A colour profile that is damaged or belongs to another kind of picture."""


def describe(profile: bytes | None, mode: str) -> str:
    """What converting does to a picture of `mode`: "" nothing, the profile's name, or UNUSABLE. None is damaged."""
    if profile is None:
        return UNUSABLE
    if not profile:
        return ""
    try:
        return "" if _transform(profile, _pixel_mode(profile, mode)) is None else _name(profile)
    except BadProfile:
        return UNUSABLE


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """`image` (RGB, RGBA, L, LA or CMYK) in sRGB, as RGB, or RGBA where it has alpha; unchanged where it is in sRGB.

    BadProfile when `profile` is damaged or describes another kind of picture.
    """
    mode = _pixel_mode(profile, image.mode)
    transform = _transform(profile, mode)
    if transform is None:
        return image
    alpha = image.getchannel("A") if image.mode in ("RGBA", "LA") else None
    pixels = image.convert(mode) if image.mode != mode else image
    try:
        converted = transform.apply(pixels)
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        raise BadProfile(str(error)) from error
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _pixel_mode(profile: bytes, mode: str) -> str:
    """The mode without alpha that the profile's numbers are in."""
    space = _space(profile)
    if mode not in _MODES.get(space, ()):
        raise BadProfile(f"a profile for {space.strip() or 'nothing known'} in an image of mode {mode}")
    return {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}[space]


@lru_cache(maxsize=64)
def _opened(profile: bytes) -> Any:
    try:
        return ImageCms.ImageCmsProfile(io.BytesIO(profile))
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        raise BadProfile(str(error)) from error


def _space(profile: bytes) -> str:
    return str(_opened(profile).profile.xcolor_space).ljust(4)


def _name(profile: bytes) -> str:
    text = str(_opened(profile).profile.profile_description or "").strip()
    return text[:60] or "a profile without a name"


@lru_cache(maxsize=64)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """The way from `profile` to sRGB; None where it changes no colour by more than a rounding."""
    try:
        transform = ImageCms.buildTransform(
            _opened(profile),
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        raise BadProfile(str(error)) from error
    if mode == "CMYK":
        return transform
    grid = _grid(mode)
    before, after = grid.convert("RGB").tobytes(), transform.apply(grid).tobytes()
    return None if max(abs(a - b) for a, b in zip(before, after, strict=True)) <= _SAME else transform


def _grid(mode: str) -> Image.Image:
    if mode == "L":
        return Image.frombytes("L", (256, 1), bytes(range(256)))
    colours = bytes(value for red in _GRID for green in _GRID for blue in _GRID for value in (red, green, blue))
    return Image.frombytes("RGB", (len(_GRID) ** 3, 1), colours)
