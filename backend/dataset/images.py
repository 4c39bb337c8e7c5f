"""Loads images, for all parts: what the scan measures, the cache encodes and the page shows is loaded here.

Colours are converted from the file's profile to sRGB, pixels turned by EXIF once, transparency is laid on the chosen
backing colour, and the result is RGB.
"""

from __future__ import annotations

import io
import logging
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from PIL import Image, PngImagePlugin, UnidentifiedImageError, features

from backend.config.endings import PICTURES, UNREAD_PICTURES
from backend.dataset import colour, png
from backend.dataset.decode_budget import BUDGET
from backend.dataset.looks import Look, look_at

log = logging.getLogger(__name__)

# Part of every cache's key. Raise it when the same file gives other pixels: 2 converts colour profiles to sRGB.
VERSION = 2

BACKING: dict[str, tuple[int, int, int]] = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}

EXTENSIONS = PICTURES if features.check("avif") else PICTURES - {".avif"}
# Picture-like files that are named in the scan instead of vanishing among "other files".
UNREAD_EXTENSIONS = UNREAD_PICTURES

# Pillow refuses above twice this (a guard of web servers); phones make 200-megapixel photos.
Image.MAX_IMAGE_PIXELS = 300_000_000
# What is left of a PNG's text (see png.without_text) and its colour profile may unpack to this many bytes.
PngImagePlugin.MAX_TEXT_CHUNK = 16 << 20
_LARGEST_FILE_BYTES = 2_000_000_000
# A PNG up to here is decoded in the scan as other kinds are; of a larger one the checksums are compared.
_CHEAP_BYTES, _CHEAP_PIXELS = 65_536, 1_000_000

# Shorter frames of an animation are taken for unset.
_SHORTEST_S = 0.01

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
    """What a check of the whole file says: width and height in px as seen (EXIF-turned), alpha used, animated.

    profile: the name of the colour profile that is converted to sRGB, "" for sRGB and files without one,
    `colour.UNUSABLE` for one that can't be used: colours are then taken as sRGB. look: None where no pixel was decoded.
    """

    width: int
    height: int
    has_alpha: bool
    animated: bool
    profile: str = ""
    look: Look | None = field(default=None, compare=False)


def read_picture(path: Path) -> bytes:
    """The bytes of a picture file. OSError when it can't be read, BadImage when it is no file or too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadImage("it is a pipe, socket, device or folder, not a file")
    if status.st_size > _LARGEST_FILE_BYTES:
        raise BadImage("it is larger than 2 GB")
    return path.read_bytes()


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none or the block is broken."""
    try:
        return _turn_of(image.getexif())
    except DECODE_ERRORS:
        return 1


def _turn_of(exif: Image.Exif) -> int:
    value = exif.get(_ORIENTATION_TAG, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def probe(source: Path | IO[bytes]) -> Probe:
    """Check `source` to its last byte and measure it.

    A JPEG is decoded at an eighth of its size: the whole stream is still read, so a cut-off file is still found. Of a
    large PNG without transparency the checksums of its chunks are compared instead.
    Raises BadImage for anything that can't be decoded, OSError when the file can't be read.
    """
    data = read_picture(source) if isinstance(source, Path) else source.read()
    return _quick_probe(data) or _full_probe(data)


def _quick_probe(data: bytes) -> Probe | None:
    """Measures of a large whole PNG, from its chunks; None where its pixels have to be seen."""
    if len(data) <= _CHEAP_BYTES:
        return None
    header = png.read_header(data)
    if header is None or header.may_be_clear or header.may_turn:
        return None
    if not 0 < header.width * header.height <= 2 * (Image.MAX_IMAGE_PIXELS or 0):
        return None
    exif = Image.Exif()
    try:
        exif.load(header.exif)
        turned = _turn_of(exif) >= 5
    except DECODE_ERRORS:
        turned = False
    width, height = (header.height, header.width) if turned else (header.width, header.height)
    return Probe(width, height, False, header.animated, colour.describe(header.profile, "L" if header.grey else "RGB"))


def _full_probe(data: bytes) -> Probe:
    try:
        with Image.open(io.BytesIO(png.without_text(data))) as image:
            width, height = image.size
            animated = image.format in ("GIF", "WEBP", "PNG", "AVIF") and bool(getattr(image, "is_animated", False))
            if image.format in ("JPEG", "MPO"):
                image.draft(None, (max(1, width // 8), max(1, height // 8)))
            with BUDGET.room(*image.size):
                image.load()
                turned = orientation(image) >= 5
                alpha = _uses_alpha(image)
                look = look_at(_from_deep_grey(image) if _is_deep(image) else image, _TURN.get(orientation(image)))
            profile = colour.describe(_profile(image, data), _shown_mode(image))
    except UnidentifiedImageError:
        raise BadImage("it is not an image in a known format") from None
    except DECODE_ERRORS as error:
        raise BadImage(_reason(error)) from error
    if width < 1 or height < 1:
        raise BadImage("it has no pixels")
    if turned:
        width, height = height, width
    return Probe(width, height, alpha, animated, profile, look)


def open_image(source: Path | IO[bytes], transparency: str = "white", at_least: int | None = None) -> Image.Image:
    """The picture as RGB in sRGB, EXIF-turned, its transparent parts laid on `transparency` (white, black or grey).

    at_least: where a smaller picture will do, the px that its shorter side must keep; a JPEG is then decoded smaller.
    Raises BadImage when it can't be decoded, OSError when it can't be read, ValueError for an unknown backing colour.
    """
    if transparency not in BACKING:
        raise ValueError(f"transparency = {transparency!r} is not one of {', '.join(BACKING)}")
    data = read_picture(source) if isinstance(source, Path) else source.read()
    try:
        with Image.open(io.BytesIO(png.without_text(data))) as image:
            if at_least is not None and image.format in ("JPEG", "MPO"):
                image.draft(None, (at_least, at_least))
            image.load()
            turn = _TURN.get(orientation(image))
            pixels = _rgb(image, BACKING[transparency], _profile(image, data))
    except UnidentifiedImageError:
        raise BadImage("it is not an image in a known format") from None
    except DECODE_ERRORS as error:
        raise BadImage(_reason(error)) from error
    if turn is not None:
        pixels = pixels.transpose(turn)
    # The orientation has been used up: left in, the next reader would turn it again.
    pixels.info.clear()
    return pixels


def look_of(path: Path) -> Look:
    """The look of a picture that was not decoded when it was measured. Raises as `open_image`."""
    return look_at(open_image(path, "grey", at_least=64), None)


def alpha_of(source: IO[bytes]) -> Image.Image:
    """The opacity of a picture as grey from 0 to 255, EXIF-turned as `open_image` turns it. Raises as `open_image`."""
    try:
        with Image.open(source) as image:
            image.load()
            turn = _TURN.get(orientation(image))
            alpha = image.convert("RGBA").getchannel("A")
    except UnidentifiedImageError:
        raise BadImage("it is not an image in a known format") from None
    except DECODE_ERRORS as error:
        raise BadImage(_reason(error)) from error
    return alpha if turn is None else alpha.transpose(turn)


def animation_frames(path: Path, transparency: str) -> Iterator[tuple[float, Image.Image]]:
    """How long each frame of an animation is shown, in seconds, and the frame as `open_image` gives a picture.

    The `info` of a frame says as ``alpha`` whether a part of it is transparent. Raises as `open_image`.
    """
    data = read_picture(path)
    try:
        with Image.open(io.BytesIO(data)) as image:
            turn = _TURN.get(orientation(image))
            for number in range(getattr(image, "n_frames", 1)):
                image.seek(number)
                image.load()
                lasts = float(image.info.get("duration") or 0) / 1000
                alpha = _uses_alpha(image)
                pixels = _rgb(image, BACKING[transparency], _profile(image, data))
                pixels = pixels if turn is None else pixels.transpose(turn)
                pixels.info = {"alpha": alpha}
                # What says nothing, or too little, is shown by browsers at ten frames a second.
                yield (lasts if lasts > _SHORTEST_S else 0.1), pixels
    except UnidentifiedImageError:
        raise BadImage("it is not an image in a known format") from None
    except DECODE_ERRORS as error:
        raise BadImage(_reason(error)) from error


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


def _profile(image: Image.Image, data: bytes) -> bytes | None:
    """The ICC profile in a loaded picture's file; empty without one, None where it is there and can't be unpacked."""
    profile = image.info.get("icc_profile")
    if profile:
        return bytes(profile)
    return None if png.has_profile(data) else b""


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith("I") or image.mode == "F"


def _is_clear(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _shown_mode(image: Image.Image) -> str:
    """The mode in which a picture's colours are converted: RGB, RGBA, L, LA or CMYK."""
    if _is_deep(image) or image.mode in ("L", "1"):
        return "LA" if _is_clear(image) and not _is_deep(image) else "L"
    if image.mode in ("LA", "La", "CMYK"):
        return "CMYK" if image.mode == "CMYK" else "LA"
    return "RGBA" if _is_clear(image) else "RGB"


def _rgb(image: Image.Image, backing: tuple[int, int, int], profile: bytes | None) -> Image.Image:
    mode = _shown_mode(image)
    shown = _from_deep_grey(image) if _is_deep(image) else image if image.mode == mode else image.convert(mode)
    if profile:
        try:
            shown = colour.to_srgb(shown, profile)
        except colour.BadProfile as error:
            log.debug("a colour profile is ignored: %s", error)
    if shown.mode in ("RGBA", "LA"):
        rgba = shown.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (*backing, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    return shown.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, or of floats from 0 to 1, scaled to 8: Pillow's own conversion clips above 255 to white."""
    wide = image if image.mode == "F" else image.convert("I")
    top = wide.getextrema()[1]
    if image.mode == "F" and top <= 1.0:
        wide = wide.point(lambda value: value * 255.0 + 0.5)
    elif top > 255:
        wide = wide.point(lambda value: value * (1 / 257) + 0.5)
    return wide.convert("L")
