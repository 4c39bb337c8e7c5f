"""What stops a run before it starts: folders are looked into as the scan does it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.config.load import parse
from backend.plan.start_check import start_problems


def problems_of(family: str, path: Path) -> list[str]:
    loaded = parse({"model": {"family": family}, "dataset": {"folders": [{"path": str(path)}]}})
    assert loaded.partial is not None
    return [each.text for each in start_problems(loaded.partial) if (each.path or "").startswith("dataset.")]


def test_folders_of_videos_and_lists_of_files_can_be_trained_on(tmp_path: Path) -> None:
    (tmp_path / "videos" / "inner").mkdir(parents=True)
    (tmp_path / "videos" / "inner" / "a.MP4").write_bytes(b"")
    assert problems_of("wan", tmp_path / "videos") == []
    assert "there is no image in" in problems_of("flux", tmp_path / "videos")[0]
    (tmp_path / "empty").mkdir()
    assert "there is no image or video in" in problems_of("wan", tmp_path / "empty")[0]
    for name, count in (("list.jsonl", 0), ("list.csv", 1)):
        (tmp_path / name).write_text("{}")
        assert len(problems_of("flux", tmp_path / name)) == count


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_to_folders_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    for name in ("images", "set"):
        (tmp_path / name).mkdir()
    (tmp_path / "set" / "again").symlink_to(tmp_path / "set")
    assert "there is no image" in problems_of("flux", tmp_path / "set")[0]
    (tmp_path / "images" / "a.png").write_bytes(b"")
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "images")
    assert problems_of("flux", tmp_path / "set") == []
