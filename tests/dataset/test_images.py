"""The one image loader: EXIF, transparency, deep grey, cutting to a bucket."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from backend.dataset.images import BadImage, cut, open_image, probe
from tests.tiny.pictures import BLUE, RED, cut_off, encoded, noise_jpeg, picture, turned_jpeg


def colours_at(image: Image.Image, *places: tuple[int, int]) -> list[str]:
    """R or B at each place, for the red and blue halves."""
    return ["R" if image.getpixel(place)[0] > 128 else "B" for place in places]


# where the red half (left in the file) ends up for each orientation, as (corner that is red, corner that is blue)
CORNERS = {
    1: ((2, 10), (37, 10)),
    2: ((37, 10), (2, 10)),
    3: ((37, 10), (2, 10)),
    4: ((2, 10), (37, 10)),
    5: ((10, 2), (10, 37)),
    6: ((10, 2), (10, 37)),
    7: ((10, 37), (10, 2)),
    8: ((10, 37), (10, 2)),
}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_pixels_and_size_once(tmp_path: Path, orientation: int) -> None:
    path = turned_jpeg(tmp_path / "a.jpg", orientation)
    image = open_image(path)
    expected = (20, 40) if orientation >= 5 else (40, 20)
    assert image.size == expected
    info = probe(path)
    assert (info.width, info.height) == expected
    assert colours_at(image, *CORNERS[orientation]) == ["R", "B"]
    # Nothing is left that would turn it a second time.
    assert image.getexif().get(0x0112, 1) == 1


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_is_no_turn(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (40, 20), RED).save(path, exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert open_image(path).size == (40, 20)
    assert probe(path).width == 40


@pytest.mark.parametrize(("backing", "colour"), [("white", 255), ("black", 0), ("grey", 128)])
def test_hidden_colour_of_transparent_pixels_is_gone(backing: str, colour: int) -> None:
    clear_red = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    clear_red.putpixel((0, 0), (0, 0, 255, 255))
    image = open_image(encoded(clear_red, "PNG"), backing)
    assert image.mode == "RGB"
    assert image.getpixel((3, 3)) == (colour, colour, colour)
    assert image.getpixel((0, 0)) == BLUE


def test_half_transparent_and_palette_and_grey_alpha() -> None:
    half = open_image(encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 128)), "PNG"), "black")
    assert half.getpixel((0, 0))[0] in (128, 129) and half.getpixel((0, 0))[1:] == (0, 0)
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    buffer = io.BytesIO()
    palette.save(buffer, "PNG", transparency=0)
    assert open_image(io.BytesIO(buffer.getvalue()), "white").getpixel((0, 0)) == (255, 255, 255)
    assert probe(io.BytesIO(buffer.getvalue())).has_alpha
    grey = encoded(Image.new("LA", (2, 2), (10, 0)), "PNG")
    assert open_image(grey, "grey").getpixel((1, 1)) == (128, 128, 128)


def test_alpha_that_is_opaque_everywhere_is_no_transparency() -> None:
    assert not probe(encoded(Image.new("RGBA", (2, 2), (1, 2, 3, 255)), "PNG")).has_alpha
    assert probe(encoded(Image.new("RGBA", (2, 2), (1, 2, 3, 254)), "PNG")).has_alpha
    assert not probe(encoded(Image.new("RGB", (2, 2)), "PNG")).has_alpha


def test_unknown_backing_colour_is_refused() -> None:
    with pytest.raises(ValueError, match="transparency = 'pink'"):
        open_image(encoded(Image.new("RGB", (2, 2)), "PNG"), "pink")


def test_sixteen_bit_grey_keeps_its_tones() -> None:
    tones = Image.fromarray(np.array([[0, 32768, 65535]], dtype=np.uint16))
    image = open_image(encoded(tones, "PNG"))
    assert [image.getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


@pytest.mark.parametrize("mode", ["L", "1", "CMYK", "YCbCr"])
def test_other_modes_become_rgb(mode: str) -> None:
    kind = "PNG" if mode in ("L", "1") else "JPEG"
    assert open_image(encoded(Image.new(mode, (8, 8)), kind)).mode == "RGB"


@pytest.mark.parametrize("share", [0.3, 0.6, 0.98])
def test_truncated_jpeg_with_whole_header_is_found(tmp_path: Path, share: float) -> None:
    path = cut_off(noise_jpeg(tmp_path / "a.jpg"), share)
    Image.open(path)  # the header alone opens
    with pytest.raises(BadImage, match="cut off"):
        probe(path)
    with pytest.raises(BadImage, match="cut off"):
        open_image(path)


@pytest.mark.parametrize("ending", [".png", ".webp", ".bmp", ".tif"])
def test_other_truncated_files_are_found(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    Image.effect_noise((64, 64), 80).convert("RGB").save(path)
    with pytest.raises(BadImage):
        probe(cut_off(path))


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0" + b"\x00" * 40])
def test_what_is_no_picture_is_a_bad_image(data: bytes) -> None:
    with pytest.raises(BadImage):
        probe(io.BytesIO(data))
    with pytest.raises(BadImage):
        open_image(io.BytesIO(data))


def test_cut_takes_the_middle(tmp_path: Path) -> None:
    image = Image.new("RGB", (60, 20), BLUE)
    image.paste(RED, (20, 0, 40, 20))
    middle = cut(image, (10, 10), (20.0, 0.0, 40.0, 20.0))
    assert middle.size == (10, 10)
    # The resampling filter sees beyond the cut, so the outermost columns may be mixed.
    assert all(middle.getpixel((x, y)) == RED for x in range(3, 7) for y in range(10))
    assert cut(image, (60, 20), (0.0, 0.0, 60.0, 20.0)) is image


def test_animated_png_shows_its_first_frame(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert probe(path).animated
    assert open_image(path).getpixel((0, 0)) == RED
    assert not probe(picture(tmp_path / "still.png")).animated
