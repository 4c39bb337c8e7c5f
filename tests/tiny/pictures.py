"""Small real picture files for the tests of this folder."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]

RED, BLUE = (255, 0, 0), (0, 0, 255)


def picture(
    path: Path, size: tuple[int, int] = (40, 20), colour: tuple[int, int, int] = RED, **options: object
) -> Path:
    """Write a picture of one colour in the format that its name ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **options)
    return path


def with_caption(path: Path, caption: bytes | str = "a caption", ending: str = ".txt") -> Path:
    """Write a caption beside a picture; returns the picture."""
    path.with_suffix(ending).write_bytes(caption.encode() if isinstance(caption, str) else caption)
    return path


def turned_jpeg(path: Path, orientation: int) -> Path:
    """A 40x20 JPEG, left half red, right half blue, with an EXIF orientation."""
    image = Image.new("RGB", (40, 20), RED)
    image.paste(BLUE, (20, 0, 40, 20))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif, quality=95, subsampling=0)
    return path


def noise_jpeg(path: Path, size: tuple[int, int] = (256, 256)) -> Path:
    """A JPEG that takes some tens of kilobytes, so that cutting it cuts pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise(size, 80).convert("RGB").save(path, quality=95)
    return path


def cut_off(path: Path, share: float = 0.5) -> Path:
    """Cut a file to a share of its bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def encoded(image: Image.Image, kind: str) -> io.BytesIO:
    """An image as a file in memory."""
    buffer = io.BytesIO()
    image.save(buffer, kind)
    buffer.seek(0)
    return buffer


def few(folder: str, where: Path, count: int = 2) -> str:
    """A folder with the first pictures of one of the demo's folders, and their captions."""
    source = Path(folder) if Path(folder).is_absolute() else ROOT / folder
    where.mkdir(parents=True, exist_ok=True)
    for picture in sorted(source.glob("*.png"))[:count]:
        for file in (picture, picture.with_suffix(".txt")):
            shutil.copy(file, where)
    return str(where)
