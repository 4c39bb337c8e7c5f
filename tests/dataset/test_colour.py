"""Colour profiles: what they make of pixels, which are told, and that caches made without them are not used."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageCms

from backend.dataset import colour
from backend.dataset.buckets import Bucket, Fit
from backend.dataset.images import open_image, probe
from backend.dataset.items import Item
from backend.dataset.scan import scan
from backend.dataset.scan_state import FolderSpec
from backend.latents.store import LatentCache, TextCache
from tests.tiny.pictures import picture, with_caption


def fixed(*values: float) -> bytes:
    return b"".join(struct.pack(">i", round(value * 65536)) for value in values)


def icc(kind: bytes, space: bytes, connection: bytes, name: str, tags: dict[bytes, bytes]) -> bytes:
    """An ICC v2 profile of these tags, with a description and a white point."""
    text = name.encode()
    desc = b"desc\0\0\0\0" + struct.pack(">I", len(text) + 1) + text + b"\0" * 79
    tags = {b"desc": desc, b"wtpt": b"XYZ \0\0\0\0" + fixed(0.9642, 1.0, 0.8249), **tags}
    place, table, body = 128 + 4 + 12 * len(tags), b"", b""
    for key, content in tags.items():
        content += b"\0" * (-len(content) % 4)
        table += key + struct.pack(">II", place + len(body), len(content))
        body += content
    header = struct.pack(">I4s4s4s4s4s", place + len(body), b"lcms", b"\x02\x10\0\0", kind, space, connection)
    header += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + b"\0" * 28 + fixed(0.9642, 1.0, 0.8249)
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


def matrix_profile(name: str, columns: tuple[tuple[float, float, float], ...], gamma: float) -> bytes:
    """A display profile: red, green and blue in XYZ (D50), and one gamma for all."""
    tags = {}
    for channel, column in zip((b"r", b"g", b"b"), columns, strict=True):
        tags[channel + b"XYZ"] = b"XYZ \0\0\0\0" + fixed(*column)
        tags[channel + b"TRC"] = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256))
    return icc(b"mntr", b"RGB ", b"XYZ ", name, tags)


# Columns from Apple's Display P3 and Adobe's RGB (1998) profiles.
P3 = matrix_profile(
    "P3 test", ((0.51512, 0.2412, -0.00105), (0.29198, 0.69225, 0.04189), (0.1571, 0.06657, 0.78407)), 2.2
)
ADOBE_COLUMNS = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))
ADOBE = matrix_profile("Adobe test", ADOBE_COLUMNS, 2.2)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def saved(image: Image.Image, kind: str, profile: bytes | None) -> io.BytesIO:
    buffer = io.BytesIO()
    image.save(buffer, kind, icc_profile=profile)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_wide_green_becomes_the_srgb_green(kind: str) -> None:
    image = Image.new("RGB", (4, 4), (60, 180, 90))
    assert open_image(saved(image, kind, P3)).getpixel((1, 1)) == pytest.approx((0, 185, 77), abs=2)
    assert open_image(saved(image, kind, ADOBE)).getpixel((1, 1)) == pytest.approx((0, 180, 84), abs=6)
    assert probe(saved(image, kind, P3)).profile == "P3 test"


def test_srgb_under_any_name_changes_no_pixel() -> None:
    image = Image.effect_noise((32, 32), 90).convert("RGB")
    file = saved(image, "PNG", SRGB)
    assert open_image(file).tobytes() == image.tobytes()
    file.seek(0)
    assert probe(file).profile == ""


def test_alpha_is_kept_while_colours_are_converted() -> None:
    image = Image.new("RGBA", (2, 2), (60, 180, 90, 255))
    image.putpixel((0, 0), (60, 180, 90, 0))
    shown = open_image(saved(image, "PNG", P3), "black")
    assert shown.getpixel((0, 0)) == (0, 0, 0)
    assert shown.getpixel((1, 1)) == pytest.approx((0, 185, 77), abs=2)


def test_a_grey_picture_with_an_rgb_profile_is_read() -> None:
    assert open_image(saved(Image.new("L", (2, 2), 100), "PNG", P3)).getpixel((0, 0)) == pytest.approx(
        (100, 100, 100), abs=3
    )


def test_a_profile_of_another_kind_or_damaged_is_told(tmp_path: Path) -> None:
    for name, profile, mode in (
        ("other", P3, "CMYK"),
        ("damaged", b"no profile" * 20, "RGB"),
        ("cut", P3[:200], "RGB"),
    ):
        with_caption(tmp_path / f"{name}.jpg")
        Image.new(mode, (8, 8), 100).save(tmp_path / f"{name}.jpg", icc_profile=profile)
    with_caption(picture(tmp_path / "wide.png", icc_profile=P3))
    result = scan([FolderSpec(tmp_path)])
    assert len(result.items) == 4
    (bad,) = [each for each in result.findings if each.kind == "bad_profile"]
    assert bad.severity == "warning" and len(bad.files) == 3 and "sRGB" in bad.remedy
    (good,) = [each for each in result.findings if each.kind == "profile"]
    assert "P3 test (1)" in good.text and good.files == (str(tmp_path / "wide.png"),)


def test_a_png_profile_that_cannot_be_unpacked_is_told() -> None:
    plain = saved(Image.new("RGB", (4, 4), (60, 180, 90)), "PNG", None).getvalue()
    content = b"iCCPname\0\0" + b"not deflated"
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    broken = plain[:33] + chunk + plain[33:]
    assert probe(io.BytesIO(broken)).profile == colour.UNUSABLE
    assert open_image(io.BytesIO(broken)).getpixel((0, 0)) == (60, 180, 90)


def cmyk_profile(cyan: tuple[int, int, int]) -> bytes:
    """A printer profile of 16 corners. cyan: Lab (8 bits, a and b from 128) of full cyan; black ink is black."""
    white, black, other = (255, 128, 128), (0, 128, 128), (128, 128, 128)
    corners = []
    for number in range(16):
        c, m, y, k = (number >> 3) & 1, (number >> 2) & 1, (number >> 1) & 1, number & 1
        corners.append(black if k else cyan if (c, m, y) == (1, 0, 0) else other if c or m or y else white)
    identity = b"".join(struct.pack(">i", 65536 if i % 4 == 0 else 0) for i in range(9))
    table = bytes(range(256))
    lut = b"mft1\0\0\0\0" + bytes((4, 3, 2, 0)) + identity + table * 4 + bytes(sum(corners, ())) + table * 3
    return icc(b"prtr", b"CMYK", b"Lab ", "Ink test", {b"A2B0": lut, b"A2B1": lut})


def test_cmyk_is_converted_by_its_profile() -> None:
    # Lab 60, -32, -48, the cyan of offset printing: far from the (0, 255, 255) of plain arithmetic.
    profile = cmyk_profile((153, 96, 80))
    shown = open_image(saved(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "TIFF", profile)).getpixel((4, 4))
    assert shown == pytest.approx((0, 158, 228), abs=12)
    assert open_image(saved(Image.new("CMYK", (8, 8)), "TIFF", profile)).getpixel((0, 0)) == (255, 255, 255)
    assert open_image(saved(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), "TIFF", profile)).getpixel((0, 0)) == (0, 0, 0)
    assert probe(saved(Image.new("CMYK", (8, 8)), "JPEG", profile)).profile == "Ink test"


def test_latents_made_before_profiles_were_read_are_made_again(tmp_path: Path) -> None:
    cache = LatentCache(tmp_path, "vae", torch.float32, "white")
    item, fit = Item("key", tmp_path / "a.png", 64, 64, ""), Fit(Bucket(64, 64, 16), (0.0, 0.0, 64.0, 64.0), 1.0, 0.0)
    assert cache.path(item, fit) != cache.path_before(item, fit)
    text = TextCache(tmp_path, "encoders", torch.float32)
    # Captions alone keep their files.
    assert text.path("a", 8) == text.file_of(
        {"caption": "a", "length": 8, "encoders": "encoders", "dtype": "torch.float32"}
    )
