"""Near-duplicates are found by what images show, whatever their size, format, brightness and turn; and only those."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance

from backend.base.paths import PROJECT_ROOT
from backend.dataset import known_looks, near_duplicates
from backend.dataset.looks import SIDE, look_at
from backend.dataset.scan import scan
from backend.dataset.scan_state import FolderSpec

DEMO = PROJECT_ROOT / "assets" / "demo" / "concept"


def test_copies_in_other_sizes_and_formats_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(DEMO, folder)
    first = sorted(folder.glob("*.png"))[0]
    with Image.open(first) as image:
        image = image.convert("RGB")
    image.resize((image.width * 2, image.height * 2)).save(folder / "zz-large.jpg", quality=70)
    ImageEnhance.Brightness(image).enhance(1.15).save(folder / "zz-bright.webp", quality=80)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(folder / "zz-turned.jpg", quality=90, exif=exif)
    # flat images have no edges to compare, and differ all the same
    Image.new("RGB", (64, 64), "white").save(folder / "zz-white.png")
    cache = tmp_path / "cache"
    items = scan([FolderSpec(folder)], cache_dir=cache).items
    request = tmp_path / "request.json"
    images = [[item.key, str(item.path), item.width, item.height] for item in items]
    request.write_text(json.dumps({"cache_dir": str(cache), "images": images}))
    near_duplicates.main([str(request)])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [{items[number].path.name for number in group} for group in result["groups"]] == [
        {first.name, "zz-large.jpg", "zz-bright.webp", "zz-turned.jpg"}
    ]
    assert result["unread"] == 0
    # by content: what was seen once is not decoded again, and without that memory all is
    monkeypatch.setattr(known_looks, "look_of", lambda path: pytest.fail(f"{path} is decoded again"))
    near_duplicates.main([str(request)])
    monkeypatch.undo()
    request.write_text(json.dumps({"cache_dir": str(tmp_path / "other"), "images": images}))
    near_duplicates.main([str(request)])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result


def test_small_things_on_white_are_not_the_same_and_large_groups_take_no_time() -> None:
    looks = []
    for left, top in ((20, 20), (350, 350), (352, 350)):
        image = Image.new("RGB", (512, 512), "white")
        ImageDraw.Draw(image).ellipse((left, top, left + 100, top + 100), fill=(90, 90, 90))
        looks.append(np.frombuffer(look_at(image, None).grey, np.uint8).reshape(SIDE, SIDE))
    assert near_duplicates.groups_of(np.stack(looks)) == [[1, 2]]
    # all pairs of 2,000 are alike: a step for each would take minutes
    assert near_duplicates.groups_of(np.stack([looks[0]] * 2000)) == [list(range(2000))]
