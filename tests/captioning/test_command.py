"""The command `caption`: the difference, write, undo, and what it refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from backend.captioning import __main__ as command
from backend.captioning.__main__ import DONE, WRONG_INPUT, main
from backend.dataset import caption_journal
from tests.tiny.captioners import picture


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two images, one with a caption, and a file that is none; what the command keeps is kept in `tmp_path`."""
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(caption_journal, "FOLDER", tmp_path / "journal")
    images = tmp_path / "images"
    images.mkdir()
    for name in ("a", "b"):
        picture(40, 30, ord(name)).save(images / f"{name}.png")
    (images / "a.txt").write_text("an old caption", "utf-8")
    (images / "c.png").write_bytes(b"no image")
    return images


def caption(*arguments: object) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=500)
    code = main([*map(str, arguments), "--device", "cpu", "--max-tokens", "6"], console)
    return code, console.file.getvalue()


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.txt"))}


def test_a_folder_is_captioned_after_a_look_and_restored(
    folder: Path, model_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    line, old = [folder, "--model", model_of("blip")], {"a.txt": "an old caption"}
    code, output = caption(*line)
    assert code == DONE and texts(folder) == old
    assert "1 of 2 images have a caption" in output and "c.png can't be used" in output and "--write" in output
    assert f"{folder / 'b.png'}\n  + " in output and "of RAM in fp32" in output

    capsys.readouterr()
    assert caption(*line, "--overwrite", "--write", "--json", "--trigger", "zyx")[0] == DONE
    result = json.loads(capsys.readouterr().out)
    written = {Path(row["file"]).name: row["after"] for row in result["captions"]}
    assert texts(folder) == written and {*written} == {"a.txt", "b.txt"} and result["written"] == 2
    assert all(text.startswith("zyx, ") for text in written.values())

    code, output = caption("--undo", result["undo"])
    assert code == DONE and texts(folder) == old


def test_what_can_not_be_captioned_is_said(folder: Path, model_of: Callable[[str], Path], tmp_path: Path) -> None:
    for arguments, words in {
        (folder,): "no model",
        (folder, "--model", tmp_path): "no config.json",
        (tmp_path / "gone", "--model", model_of("blip")): "does not exist",
        (folder, "--model", model_of("blip"), "--beams", "99"): "--beams",
        (folder, "--model", model_of("florence2"), "--prompt", "a"): "no prompt",
        ("--undo", "never"): "undo",
    }.items():
        code, output = caption(*arguments)
        assert code == WRONG_INPUT and words in output, arguments
