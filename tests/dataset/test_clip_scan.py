"""Clips in a scan: which frames are taken of each, with which caption, and what is said of the rest."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from backend.config.schema import Config, with_values
from backend.dataset.items import DatasetScan, Finding, Item
from backend.dataset.scan import scan_dataset
from backend.dataset.thumbnails import make, reply_to
from tests.tiny.clips import add_family, grey_of, number_of, write_animation, write_clip


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    add_family(monkeypatch)


def config(folder: Path, family: str = "clips", **values: Any) -> Config:
    return with_values(Config(), {"model.family": family, "dataset.folders": [{"path": str(folder)}], **values})


def scan_of(folder: Path, family: str = "clips", **values: Any) -> DatasetScan:
    return scan_dataset(config(folder, family, **values), cache_dir=folder.parent / "cache")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    folder = tmp_path / "mixed"
    write_clip(folder / "long.mp4", 40)
    (folder / "long.txt").write_text("a long clip")
    write_clip(folder / "fast.mkv", 60, 30)
    write_clip(folder / "short.webm", 6, codec="libvpx-vp9")
    write_animation(folder / "slow.gif")
    write_animation(folder / "moving.webp")
    Image.new("RGB", (80, 60)).save(folder / "still.png")
    (folder / "broken.mov").write_bytes(b"x" * 99)
    return folder


def test_pictures_and_clips_of_one_folder_are_items_with_their_captions(family: None, mixed: Path) -> None:
    scan = scan_of(mixed, **{"video.frame_extraction": "chunk"})
    items = scan.train.items
    windows = {name: [item.window for item in items if item.path.name == name] for name in {i.path.name for i in items}}
    assert {name: len(each) for name, each in windows.items()} == {
        "long.mp4": 4, "fast.mkv": 3, "short.webm": 1, "slow.gif": 2, "moving.webp": 2, "still.png": 1
    }  # fmt: skip
    assert windows["still.png"] == [None] and [w.start for w in windows["long.mp4"] if w] == [
        0,
        9 / 16,
        18 / 16,
        27 / 16,
    ]
    assert {item.caption for item in items if item.path.name == "long.mp4"} == {"a long clip"}
    assert len({item.key for item in items if item.path.name == "long.mp4"}) == 1
    assert DatasetScan.from_dict(scan.to_dict()) == scan
    again = scan_of(mixed, **{"video.frame_extraction": "chunk"})
    assert again == scan
    assert "1 image and 12 windows of 5 clips to use of 7 found" in scan.train.summary()[0]


CHANGES: list[dict[str, Any]] = [
    {"target_frames": [5]},
    {"frame_extraction": "full", "max_frames": 17},
    *({"frame_extraction": kind} for kind in ("chunk", "full")),
    *({"frame_extraction": "slide", "frame_stride": stride} for stride in (3, 4)),
    *({"frame_extraction": "uniform", "frame_sample": sample} for sample in (2, 3)),
    {"target_fps": 12.0},
    {"source_fps": 32.0},
]


def test_settings_change_which_frames_are_trained_on(family: None, tmp_path: Path) -> None:
    write_clip(tmp_path / "set" / "a.mp4", 40)
    seen = [
        tuple(
            item.window
            for item in scan_of(tmp_path / "set", **{f"video.{k}": v for k, v in change.items()}).train.items
        )
        for change in ({}, *CHANGES)
    ]
    assert len(set(seen)) == len(seen)


def kinds(scan: DatasetScan) -> dict[str, Finding]:
    return {finding.kind: finding for finding in scan.train.findings}


def test_what_is_cut_repeated_or_too_short_is_said_of_each_clip(family: None, mixed: Path) -> None:
    texts = kinds(scan_of(mixed, **{"video.target_frames": [10, 34]}))
    names = {kind: {Path(file).name for file in finding.files} for kind, finding in texts.items()}
    assert names["clip_short"] == {"short.webm"} and "6 frames, 5 taken" in texts["clip_short"].text
    assert names["clip_lengths_left"] == {"fast.mkv", "slow.gif", "moving.webp"}
    assert names["clip_repeats"] == {"slow.gif", "moving.webp"} and names["clip_retimed"] == {"fast.mkv"}
    assert "10 becomes 9, 34 becomes 33" in texts["clip_length"].text
    assert "long.mp4 (0.4 of 2.5 s)" in texts["clip_seconds"].text
    assert "broken.mov" in texts["unreadable"].text and "animated" not in texts and "copies" not in texts
    used = {Path(clip.path).name: clip for clip in scan_of(mixed).train.clips}
    assert used["long.mp4"].used == pytest.approx(9 / 16) and used["long.mp4"].dropped == pytest.approx(31 / 16)
    assert math.isclose(sum(c.used + c.dropped for c in used.values()), sum(c.seconds for c in used.values()))


def test_a_family_of_pictures_names_clips_as_other_files(mixed: Path, family: None) -> None:
    scan_of(mixed)
    scan = scan_of(mixed, "flux")
    assert {item.path.name for item in scan.train.items} == {"moving.webp", "still.png"}
    assert scan.train.other[".mp4"] == 1 and not scan.train.clips and "animated" in kinds(scan)
    # what was measured for pictures is measured again as a clip
    again = {item.path.name for item in scan_of(mixed).train.items if item.window is not None}
    assert "moving.webp" in again


def test_all_windows_of_a_clip_are_held_out_together(family: None, tmp_path: Path) -> None:
    for number in range(6):
        write_clip(tmp_path / "set" / f"{number}.mp4", 20 + number)
    scan = scan_of(tmp_path / "set", **{"video.frame_extraction": "chunk", "dataset.validation_split": 0.34})
    held, kept = scan.validation["held out"].items, scan.train.items
    assert {item.path for item in held}.isdisjoint(item.path for item in kept)
    assert len({item.path for item in held}) == 2 and len(held) >= 4
    assert {clip.path for clip in scan.validation["held out"].clips} == {str(item.path) for item in held}


def test_a_folder_of_nothing_says_what_is_looked_for(family: None, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (notice,) = [finding for finding in scan_of(tmp_path / "set").findings if finding.kind == "no_pictures"]
    assert "no image or video" in notice.text and "mp4" in notice.remedy


def test_thumbnails_and_strips_of_clips(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", 20, size=(128, 96))
    make(path, tmp_path / "one.jpg", 64)
    with Image.open(tmp_path / "one.jpg") as picture:
        assert picture.size == (64, 48) and number_of(np.asarray(picture).mean()) == 0
    assert reply_to({"path": str(path), "to": str(tmp_path / "s.jpg"), "px": 32, "times": [0.0, 0.5, 1.0]}) == {
        "fault": None
    }
    with Image.open(tmp_path / "s.jpg") as picture:
        assert picture.size == (96, 24)
        strip = np.asarray(picture.convert("L"))
    assert [number_of(strip[:, at : at + 32].mean()) for at in (0, 32, 64)] == [0, 8, 16]
    # an animation with a picture's ending, at a time, and frames that are far from each other
    make(write_animation(tmp_path / "a.webp"), tmp_path / "w.jpg", 64, [0.45])
    make(write_clip(tmp_path / "long.mp4", 100, 5), tmp_path / "l.jpg", 32, [0.0, 7.0, 19.0])
    for name, shown in (("w.jpg", [4]), ("l.jpg", [0, 10, 20])):
        with Image.open(tmp_path / name) as picture:
            strip = np.asarray(picture.convert("L"))
        assert [number_of(part.mean()) for part in np.split(strip, len(shown), axis=1)] == shown
    (tmp_path / "bad.mp4").write_text("no clip")
    assert reply_to({"path": str(tmp_path / "bad.mp4"), "to": "x", "px": 32})["fault"]


def test_items_of_old_scans_have_no_window() -> None:
    item = Item("k", Path("a.png"), 1, 1, "c")
    assert "window" not in item.to_dict() and Item.from_dict(item.to_dict()) == item and item.frames == 1
    assert grey_of(3) == 35
