"""The one image loader: what the scan measures, the cache encodes and the page shows all come through here.

Pixels are turned by EXIF once, transparency is laid on the chosen backing colour, and the result is RGB.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from PIL import Image, UnidentifiedImageError, features

log = logging.getLogger(__name__)

BACKING: dict[str, tuple[int, int, int]] = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}

EXTENSIONS = frozenset(
    {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".tif", ".tiff"}
    | ({".avif"} if features.check("avif") else set())
)
# Picture-like files that are named in the scan instead of vanishing among "other files".
UNREAD_EXTENSIONS = frozenset(
    {".gif", ".heic", ".heif", ".jxl", ".avif", ".psd", ".svg", ".dng", ".cr2", ".nef", ".arw"}
)

# Pillow refuses above twice this (a guard of web servers); phones make 200-megapixel photos.
Image.MAX_IMAGE_PIXELS = 300_000_000

_ORIENTATION_TAG = 0x0112
_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# What Pillow raises on damaged files: most are OSError or ValueError, broken chunks raise the rest.
DECODE_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    ZeroDivisionError,
    OverflowError,
    MemoryError,
    AttributeError,
    Image.DecompressionBombError,
)


class BadImage(ValueError):
    """A file that is no usable picture; the message says why, without the path."""


@dataclass(frozen=True)
class Probe:
    """What a full decode says: width and height in px as seen (EXIF-turned), alpha used, and whether it is animated."""

    width: int
    height: int
    has_alpha: bool
    animated: bool


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none or the block is broken."""
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except DECODE_ERRORS:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def probe(source: Path | IO[bytes]) -> Probe:
    """Decode `source` to its last byte and measure it.

    A JPEG is decoded at an eighth of its size: the whole stream is still read, so a cut-off file is still found.
    Raises BadImage for anything that can't be decoded.
    """
    try:
        with Image.open(source) as image:
            width, height = image.size
            turned = orientation(image) >= 5
            animated = image.format in ("GIF", "WEBP", "PNG", "AVIF") and bool(getattr(image, "is_animated", False))
            if image.format in ("JPEG", "MPO"):
                image.draft(None, (max(1, width // 8), max(1, height // 8)))
            image.load()
            alpha = _uses_alpha(image)
    except UnidentifiedImageError:
        raise BadImage("it is no picture in a known format") from None
    except DECODE_ERRORS as error:
        raise BadImage(_reason(error)) from error
    if width < 1 or height < 1:
        raise BadImage("it has no pixels")
    return Probe(height if turned else width, width if turned else height, alpha, animated)


def open_image(source: Path | IO[bytes], transparency: str = "white") -> Image.Image:
    """The picture as RGB, EXIF-turned, its transparent parts laid on `transparency` (white, black or grey).

    Raises BadImage when it can't be decoded, ValueError for an unknown backing colour.
    """
    if transparency not in BACKING:
        raise ValueError(f"transparency = {transparency!r} is none of {', '.join(BACKING)}")
    try:
        with Image.open(source) as image:
            image.load()
            turn = _TURN.get(orientation(image))
            pixels = _rgb(image, BACKING[transparency])
    except UnidentifiedImageError:
        raise BadImage("it is no picture in a known format") from None
    except DECODE_ERRORS as error:
        raise BadImage(_reason(error)) from error
    if turn is not None:
        pixels = pixels.transpose(turn)
    # The orientation has been used up: left in, the next reader would turn it again.
    pixels.info.clear()
    return pixels


def cut(image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float]) -> Image.Image:
    """`box` (left, top, right, bottom; px, fractions allowed) of `image`, resampled to `size` (width, height)."""
    if image.size == size and box == (0.0, 0.0, *map(float, size)):
        return image
    return image.resize(size, Image.Resampling.LANCZOS, box=box)


def _reason(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if "truncated" in text.lower():
        return f"the file is cut off ({text})"
    if isinstance(error, Image.DecompressionBombError):
        return "it has more than 600 megapixels"
    return f"it can't be decoded ({text})"


def _uses_alpha(image: Image.Image) -> bool:
    """Whether any pixel is not opaque: an alpha channel that is 255 everywhere is no transparency."""
    if image.mode in ("RGBA", "LA", "PA"):
        return image.getchannel("A").getextrema()[0] < 255
    if "transparency" in image.info:
        return image.convert("RGBA").getchannel("A").getextrema()[0] < 255
    return False


def _rgb(image: Image.Image, backing: tuple[int, int, int]) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (*backing, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    if image.mode.startswith("I") or image.mode == "F":
        return _from_deep_grey(image)
    return image.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, or of floats from 0 to 1, scaled to 8: Pillow's own conversion clips above 255 to white."""
    wide = image if image.mode == "F" else image.convert("I")
    top = wide.getextrema()[1]
    if image.mode == "F" and top <= 1.0:
        wide = wide.point(lambda value: value * 255.0 + 0.5)
    elif top > 255:
        wide = wide.point(lambda value: value * (1 / 257) + 0.5)
    return wide.convert("L").convert("RGB")
