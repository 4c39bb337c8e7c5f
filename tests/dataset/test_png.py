"""PNG files read from their chunks: text of any length, and whole files told from damaged ones without decoding."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, ImageFile, PngImagePlugin

from backend.dataset import png
from backend.dataset.images import BadImage, open_image, probe
from tests.tiny.pictures import RED, encoded


def noisy(mode: str = "RGB", **options: object) -> bytes:
    """A PNG of about 190 KB: large enough to be checked by its chunks."""
    buffer = io.BytesIO()
    Image.effect_noise((256, 256), 90).convert(mode).save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("where", ["tEXt", "zTXt", "iTXt"])
def test_long_text_does_not_hide_a_picture(where: str) -> None:
    chunks = PngImagePlugin.PngInfo()
    text = "workflow " * 2_000_000  # more than Pillow is allowed to unpack
    chunks.add_itxt("workflow", text, zip=True) if where == "iTXt" else chunks.add_text(
        "workflow", text, where == "zTXt"
    )
    buffer = io.BytesIO()
    Image.new("RGB", (40, 20), RED).save(buffer, "PNG", pnginfo=chunks)
    assert probe(io.BytesIO(buffer.getvalue())).width == 40
    assert open_image(io.BytesIO(buffer.getvalue())).getpixel((1, 1)) == RED
    assert b"workflow" not in png.without_text(buffer.getvalue())


def test_the_chunks_say_what_decoding_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    wide = Image.effect_noise((512, 256), 90).convert("RGB")
    buffer = io.BytesIO()
    wide.save(buffer, "PNG", exif=exif)
    data = buffer.getvalue()
    header = png.read_header(data)
    assert header is not None and (header.width, header.height, header.may_be_clear) == (512, 256, False)
    info = probe(io.BytesIO(data))
    assert (info.width, info.height, info.has_alpha, info.animated) == (256, 512, False, False)
    assert open_image(io.BytesIO(data)).size == (256, 512)
    assert probe(io.BytesIO(noisy("L"))).width == 256
    clear = Image.merge("RGBA", [Image.effect_noise((256, 256), 90)] * 4)
    assert probe(encoded(clear, "PNG")).has_alpha


def test_a_large_png_is_measured_without_decoding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = noisy()
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
    assert (probe(io.BytesIO(data)).width, probe(io.BytesIO(data)).has_alpha) == (256, False)


def test_a_turn_in_text_is_still_seen() -> None:
    chunks = PngImagePlugin.PngInfo()
    chunks.add_itxt("XML:com.adobe.xmp", '<x><rdf:Description tiff:Orientation="6"/></x>')
    buffer = io.BytesIO()
    Image.effect_noise((512, 256), 90).convert("RGB").save(buffer, "PNG", pnginfo=chunks)
    info = probe(io.BytesIO(buffer.getvalue()))
    assert (info.width, info.height) == open_image(io.BytesIO(buffer.getvalue())).size == (256, 512)


def test_any_cut_and_any_changed_byte_of_a_large_png_is_found(tmp_path: Path) -> None:
    data = noisy()
    assert probe(io.BytesIO(data)).width == 256 and png.read_header(data) is not None
    for share in (0.999, 0.9, 0.5, 0.3):
        assert png.read_header(data[: int(len(data) * share)]) is None
    with pytest.raises(BadImage, match="cut off|truncated"):
        probe(io.BytesIO(data[: len(data) // 2]))
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0xFF
    assert png.read_header(bytes(changed)) is None
    with pytest.raises(BadImage):
        probe(io.BytesIO(bytes(changed)))
