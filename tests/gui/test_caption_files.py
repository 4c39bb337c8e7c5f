"""Captions are edited on the page as their files hold them: lines stay lines, and what is no plain text stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import HTTPException
from PIL import Image

from backend.config.schema import Config
from backend.dataset.scan import scan_dataset
from gui.captions import Captions
from gui.dataset_scan import PageScan


def editor_of(folder: Path, extension: str = ".txt", wildcards: bool = False) -> Captions:
    data = {"folders": [{"path": str(folder), "caption_prefix": "photo of"}], "cache_dir": str(folder.parent / "c")}
    captions = {"caption_lines": True, "more_caption_extensions": [".caption"], "enable_wildcard": wildcards}
    cfg = Config.model_validate({"dataset": {**data, "caption_extension": extension}, "captions": captions})
    scan = PageScan(folder.parent / "page")
    scan._take(cfg, scan_dataset(cfg))
    return Captions(scan)


def test_lines_and_further_files_are_kept_and_json_is_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "i"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    (folder / "a.txt").write_text("a cat\na black cat\n")
    (folder / "a.caption").write_text("an animal")
    editor = editor_of(folder)
    assert editor.read(0, 0)["text"] == "a cat\na black cat"
    assert editor.scan.page(0)["items"][0]["captions"] == 3 and not editor.scan.page(0)["items"][0]["masked"]
    assert editor.write(0, 0, "a dog\nan old dog")["caption"] == "photo of a dog"
    assert editor.scan.items[0].texts == tuple(f"photo of {text}" for text in ("a dog", "an old dog", "an animal"))
    assert (folder / "a.txt").read_text() == "a dog\nan old dog"
    # what a table or the folder says is shown without what is written around it
    (folder / "a.txt").unlink()
    (folder / "a.caption").unlink()
    assert (editor_of(folder).read(0, 0)["text"], editor_of(folder).scan.items[0].caption) == ("", "photo of")
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "a bird"}')
    assert (editor_of(folder).read(0, 0)["text"], editor_of(folder).scan.items[0].caption) == (
        "a bird", "photo of a bird"
    )  # fmt: skip
    # as it is written there, not as it is measured
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "a {red|blue} bird"}')
    assert editor_of(folder, wildcards=True).read(0, 0)["text"] == "a {red|blue} bird"
    # a caption is no JSON, and no file with that ending is made of one
    editor = editor_of(folder, ".json")
    assert "text editor" in editor.read(0, 0)["note"]
    with pytest.raises(HTTPException, match="JSON"):
        editor.write(0, 0, "a dog")
    assert not (folder / "a.json").exists()
    (folder / "a.json").write_text('{"caption": "a cat", "score": 3}')
    editor = editor_of(folder, ".json")
    assert editor.read(0, 0)["text"] == "a cat"
    with pytest.raises(HTTPException) as refused:
        editor.write(0, 0, "a dog")
    assert refused.value.status_code == 409 and "JSON" in refused.value.detail
    assert "score" in (folder / "a.json").read_text()
