"""A second scan: what it remembers of the pictures, when it measures them again, and what it counts."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from backend.dataset import scan as scanning
from backend.dataset.items import Scan
from backend.dataset.scan import scan
from backend.dataset.scan_cache import ScanCache
from backend.dataset.scan_state import FolderSpec
from tests.tiny.pictures import BLUE, RED, cut_off, noise_jpeg, picture, with_caption


def look(*folders: Path, **options: object) -> Scan:
    return scan([FolderSpec(folder) for folder in folders], **options)


def make_old(*paths: Path, seconds: int = 60) -> None:
    """Date files back, so that the memory of scans trusts them."""
    for path in paths:
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - seconds * 10**9))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the pictures that are really decoded; file times count as old."""
    calls: list[int] = []
    real = scanning.probe
    monkeypatch.setattr(scanning, "probe", lambda source: (calls.append(1), real(source))[1])
    monkeypatch.setattr("backend.dataset.scan_cache.YOUNG_S", -1.0)
    return calls


def test_d11_second_scan_decodes_nothing(tmp_path: Path, decoded: list[int]) -> None:
    images = tmp_path / "images"
    for number in range(10):
        with_caption(picture(images / f"{number}.png", (16 + number, 16), (number, 0, 0)))
    with_caption(cut_off(noise_jpeg(images / "bad.jpg")))
    first = look(images, cache_dir=tmp_path / "cache")
    assert len(decoded) == 11
    second = look(images, cache_dir=tmp_path / "cache")
    assert len(decoded) == 11
    assert second == first
    # A changed caption counts although no picture is looked at again.
    (images / "0.txt").write_text("another")
    assert look(images, cache_dir=tmp_path / "cache").items[0].caption == "another"


def test_changed_picture_is_measured_again_even_with_its_old_date(tmp_path: Path, decoded: list[int]) -> None:
    path = with_caption(picture(tmp_path / "i" / "a.bmp", colour=RED))
    make_old(path)
    before, stat = look(tmp_path / "i", cache_dir=tmp_path / "cache").items[0], path.stat()
    picture(path, colour=BLUE)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after = look(tmp_path / "i", cache_dir=tmp_path / "cache").items[0]
    assert after.key != before.key


def test_files_touched_just_now_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_caption(picture(tmp_path / "i" / "a.png"))
    look(tmp_path / "i", cache_dir=tmp_path / "cache")
    assert ScanCache(tmp_path / "cache").get(tmp_path / "i" / "a.png") is None
    # what content looks like is true of any file that has it
    assert len(ScanCache(tmp_path / "cache").looks()) == 1
    monkeypatch.setattr("backend.dataset.scan_cache.YOUNG_S", -1.0)
    look(tmp_path / "i", cache_dir=tmp_path / "cache")
    assert ScanCache(tmp_path / "cache").get(tmp_path / "i" / "a.png") is not None


@pytest.mark.parametrize("damage", [b"", b"no database at all, but long enough to be one" * 50])
def test_d14_broken_memory_is_made_anew(tmp_path: Path, decoded: list[int], damage: bytes) -> None:
    with_caption(picture(tmp_path / "i" / "a.png"))
    look(tmp_path / "i", cache_dir=tmp_path / "cache")
    (tmp_path / "cache" / "scan.sqlite").write_bytes(damage)
    assert len(look(tmp_path / "i", cache_dir=tmp_path / "cache").items) == 1
    assert len(look(tmp_path / "i", cache_dir=tmp_path / "cache").items) == 1
    assert len(decoded) == 2


def test_memory_of_another_version_is_made_anew(tmp_path: Path, decoded: list[int]) -> None:
    with_caption(picture(tmp_path / "i" / "a.png"))
    look(tmp_path / "i", cache_dir=tmp_path / "cache")
    with sqlite3.connect(tmp_path / "cache" / "scan.sqlite") as connection:
        connection.execute("UPDATE images SET width = 9999")
        connection.execute("PRAGMA user_version = 99")
    assert look(tmp_path / "i", cache_dir=tmp_path / "cache").items[0].width == 40


def test_cache_folder_that_can_not_be_made_is_no_fault(tmp_path: Path, decoded: list[int]) -> None:
    with_caption(picture(tmp_path / "i" / "a.png"))
    (tmp_path / "file").write_text("in the way")
    assert len(look(tmp_path / "i", cache_dir=tmp_path / "file" / "cache").items) == 1


def test_nothing_is_written_beside_the_pictures(tmp_path: Path, decoded: list[int]) -> None:
    with_caption(picture(tmp_path / "i" / "a.png"))
    look(tmp_path / "i", cache_dir=tmp_path / "cache")
    assert sorted(path.name for path in (tmp_path / "i").iterdir()) == ["a.png", "a.txt"]


def test_progress_counts_every_picture(tmp_path: Path, decoded: list[int]) -> None:
    for number in range(5):
        picture(tmp_path / "i" / f"{number}.png", colour=(number, 0, 0))
    calls: list[tuple[int, int]] = []
    look(tmp_path / "i", cache_dir=tmp_path / "c", progress=lambda done, total, path: calls.append((done, total)))
    assert calls == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    calls.clear()
    look(tmp_path / "i", cache_dir=tmp_path / "c", progress=lambda done, total, path: calls.append((done, total)))
    assert calls == [(5, 5)]
