"""Lists of pictures and clips with their captions, in the place of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.dataset.items import Finding, Scan
from backend.dataset.scan import scan
from backend.dataset.scan_state import FolderSpec
from backend.dataset.windows import ClipRule
from tests.tiny.clips import FAMILY, write_clip
from tests.tiny.pictures import BLUE, RED, picture

RULE = ClipRule(lengths=(9,), rate=16.0, geometry=FAMILY.default_geometry)


def listed(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def look(path: Path, **more: Any) -> Scan:
    return scan([FolderSpec(path, **more)], trigger_word=None)


def said(result: Scan) -> dict[str, Finding]:
    return {finding.kind: finding for finding in result.findings}


def test_a_list_names_pictures_and_clips_anywhere_with_their_captions(tmp_path: Path) -> None:
    picture(tmp_path / "lists" / "near" / "a.png", colour=RED)
    picture(tmp_path / "far" / "b.png", colour=BLUE)
    write_clip(tmp_path / "lists" / "c.mp4", 20)
    path = listed(
        tmp_path / "lists" / "train.jsonl",
        {"image_path": "near/a.png", "caption": "a red square"},
        {"file_name": "../far/b.png", "text": "a blue one"},
        "",
        {"video_path": str(tmp_path / "lists" / "c.mp4"), "caption": "a clip"},
    )
    result = look(path, clips=RULE, num_repeats=3)
    assert [(i.path.name, i.caption, i.repeats, i.frames) for i in result.items] == [
        ("a.png", "a red square", 3, 1), ("b.png", "a blue one", 3, 1), ("c.mp4", "a clip", 3, 9)
    ]  # fmt: skip
    assert result.captions == 3 and "no_captions" not in said(result) and "missing_caption" not in said(result)
    # a family of pictures leaves the clip out and counts it
    assert [item.path.name for item in look(path).items] == ["a.png", "b.png"] and look(path).other == {".mp4": 1}
    # further caption files next to a picture count too
    (tmp_path / "far" / "b.more").write_text("from further on")
    assert [item.caption for item in scan([FolderSpec(path)], more_extensions=[".more"]).items][1] == "from further on"
    # the folder itself takes the caption of its own picture from the list
    assert "1 image" in said(look(tmp_path / "lists"))["caption_table"].text


def test_lines_that_cant_be_used_and_files_that_are_gone_are_named(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", colour=RED)
    picture(tmp_path / "b.png", colour=BLUE)
    (tmp_path / "b.txt").write_text("from the file")
    path = listed(
        tmp_path / "list.jsonl",
        {"image_path": "a.png"}, "{broken", {"caption": "no file"}, {"image_path": "gone.png", "caption": "x"},
        {"image_path": "b.png", "caption": "from the list"}, [1],
    )  # fmt: skip
    result = look(path)
    assert {item.path.name: item.caption for item in result.items} == {"a.png": "", "b.png": "from the file"}
    kinds = said(result)
    assert "3 lines of list.jsonl" in kinds["list_lines"].text and "line 2" in kinds["list_lines"].text
    assert "gone.png" in kinds["unreadable"].text and "b.png" in kinds["listed_captions"].text
    assert "a.png" in kinds["missing_caption"].text


def test_separators_within_a_caption_end_no_line(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", colour=RED)
    caption = "one\u2028two\u2029three\u0085four"
    path = listed(tmp_path / "list.jsonl", json.dumps({"image_path": "a.png", "caption": caption}, ensure_ascii=False))
    result = look(path)
    assert [item.caption for item in result.items] == [caption] and "list_lines" not in said(result)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'{"image_path": "a.pdf"}'])
def test_a_list_of_nothing_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "list.jsonl"
    path.write_bytes(content)
    result = look(path)
    assert not result.items and {f.severity for f in result.findings} == {"error"}
    assert ("broken_list" in said(result)) == (content[:1] == b"\xff")


def test_control_pictures_of_a_list_go_by_name(tmp_path: Path) -> None:
    picture(tmp_path / "i" / "a.png", colour=RED)
    picture(tmp_path / "c" / "a.png", colour=BLUE)
    result = look(listed(tmp_path / "list.jsonl", {"image_path": "i/a.png", "caption": "x"}), control=tmp_path / "c")
    assert [item.controls[0].path for item in result.items] == [tmp_path / "c" / "a.png"]
