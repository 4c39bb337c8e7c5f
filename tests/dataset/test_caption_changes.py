"""Captions are changed in whatever file has them, all or none, and come back byte by byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from backend.base.errors import Refused, WriteFailed
from backend.dataset import caption_changes
from backend.dataset.caption_changes import CaptionChange, apply, text_of, undo
from backend.dataset.caption_journal import Journal
from backend.dataset.scan import scan
from backend.dataset.scan_state import FolderSpec

FILES = {
    "a.txt": "a cat\r\non a mat\r\n",
    "b.json": '{\n  "score": 3,\n  "caption": "a dog",\n  "tags": ["dog", "grass"]\n}\n',
    "metadata.jsonl": '{"file_name": "c.png", "text": "a b\\u00efrd"}\n\n{"file_name": "x.png", "text": "z",  "n": 1}',
    "rows.csv": 'image,caption\r\nd.png,"a fish, blue"\r\ne.png,a frog\r\n',
    "kohya.json": '{"f": {"caption": "a pig", "tags": "pig, mud", "train_resolution": [64, 64]}}',
}
"""A file for each way to write captions, for the images a to f."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in "abcdefg":
        Image.new("RGB", (64, 64), (ord(name), 0, 0)).save(folder / f"{name}.png")
    for name, text in FILES.items():
        (folder / name).write_bytes(text.encode())
    return folder


def changes_of(folder: Path, ending: str) -> list[CaptionChange]:
    """`ending` behind each caption of the scanned folder; g has none yet."""
    changes = []
    for item in scan([FolderSpec(folder)], more_extensions=[".json"]).items:
        path, entry = (item.row.path, item.row.name) if item.row else (item.caption_path, None)
        path = path or item.path.with_suffix(".txt")
        before = text_of(path, entry)
        changes.append(CaptionChange(path, before, (before or "new") + ending, entry))
    return changes


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".png"}


def test_every_kind_of_file_is_changed_and_comes_back(folder: Path) -> None:
    before, journal = bytes_in(folder), folder.parent / "journal"
    applied = apply(changes_of(folder, ", soft light"), "Add a tag", folder=journal)
    assert (applied.files, applied.left) == (6, ())
    assert {item.path.stem: item.caption for item in scan([FolderSpec(folder)], more_extensions=[".json"]).items} == {
        "a": "a cat on a mat, soft light",
        "b": "a dog, dog, grass, soft light",
        "c": "a bïrd, soft light",
        "d": "a fish, blue, soft light",
        "e": "a frog, soft light",
        "f": "a pig, pig, mud, soft light",
        "g": "new, soft light",
    }
    after = bytes_in(folder)
    assert after["a.txt"] == b"a cat\r\non a mat, soft light\r\n" and after["g.txt"] == b"new, soft light"
    tags = ["dog", "grass", "soft light"]
    assert json.loads(after["b.json"]) == {"score": 3, "caption": "a dog", "tags": tags}
    # other rows to the byte, in their order
    first, rest = FILES["metadata.jsonl"].split("\n", 1)
    assert after["metadata.jsonl"].decode() == first.replace('"}', ', soft light"}') + "\n" + rest
    assert json.loads(after["kohya.json"])["f"]["train_resolution"] == [64, 64]
    entry = Journal.at(journal).newest()
    assert entry is not None and (entry.id, entry.what, entry.files, entry.state) == (
        applied.id, "Add a tag", 6, "applied"
    )  # fmt: skip
    # what somebody wrote since stays
    (folder / "a.txt").write_text("mine")
    undone = undo(applied.id, folder=journal)
    assert undone.left == (folder / "a.txt",) and len(undone.files) == 5
    assert bytes_in(folder) == {**before, "a.txt": b"mine"}
    assert Journal.at(journal).newest() is None
    with pytest.raises(Refused, match="undone already"):
        undo(applied.id, folder=journal)


def test_nothing_is_written_when_one_file_is_another_by_now(folder: Path) -> None:
    planned, journal = changes_of(folder, "!"), folder.parent / "journal"
    (folder / "rows.csv").write_text("image,caption\nd.png,a shark\ne.png,a frog\n")
    before = bytes_in(folder)
    with pytest.raises(Refused, match=r"1 caption file changed meanwhile: .*rows\.csv"):
        apply(planned, folder=journal)
    (folder / "twice.json").write_text('{"caption": "a", "caption": "b"}')
    (folder / "weights.pt").write_bytes(b"abc")
    wrong = [CaptionChange(folder / "twice.json", "b", "c"), CaptionChange(folder / "weights.pt", "abc", "c")]
    with pytest.raises(Refused, match=r"names something twice.*weights\.pt: it is not a text file"):
        apply(wrong, folder=journal)
    assert bytes_in(folder).items() >= before.items() and Journal.at(journal).entries() == []


def test_changes_that_end_midway_are_undone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, planned, journal = bytes_in(folder), changes_of(folder, "!"), folder.parent / "journal"

    monkeypatch.setattr(caption_changes, "_AT_ONCE", 1)

    def stop(done: int, total: int) -> None:
        assert bytes_in(folder) != before and (done, total) == (4, 6)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(planned, folder=journal, progress=stop)
    assert bytes_in(folder) == before and Journal.at(journal).entries() == []
    # a crash leaves no time to put anything back
    monkeypatch.setattr(caption_changes, "_restore", lambda kept: True)
    monkeypatch.setattr(Journal, "drop", lambda self, name: None)
    with pytest.raises(KeyboardInterrupt):
        apply(planned, folder=journal, progress=stop)
    monkeypatch.undo()
    entry = Journal.at(journal).newest()
    assert entry is not None and entry.state == "cut off" and bytes_in(folder) != before
    assert undo(entry.id, folder=journal).left == ()
    assert bytes_in(folder) == before


def test_a_caption_that_was_emptied_can_be_written_again(tmp_path: Path) -> None:
    files = {
        tmp_path / "m.csv": (b"file_name,text\na.png,cat\n", "a.png", b"file_name,text\na.png,moon\n"),
        tmp_path / "m.jsonl": (b'{"image": "a", "tags": ["cat"]}', "a", b'{"image": "a", "tags": ["moon"]}'),
        # its mark and line ends stay
        tmp_path / "b.json": (
            b'\xef\xbb\xbf{\r\n "text": "cat"\r\n}', None, b'\xef\xbb\xbf{\r\n "text": "moon"\r\n}',
        ),
    }  # fmt: skip
    for path, (before, _, _) in files.items():
        path.write_bytes(before)
    for old, new in (("cat", ""), ("", "moon")):
        changes = [CaptionChange(path, old, new, entry) for path, (_, entry, _) in files.items()]
        assert apply(changes, folder=tmp_path / "journal").files == 3
    assert {path: path.read_bytes() for path in files} == {path: after for path, (_, _, after) in files.items()}
    # no column for it
    (tmp_path / "n.csv").write_text("file_name,size\na.png,3\n")
    with pytest.raises(Refused, match="can't hold the new caption"):
        apply([CaptionChange(tmp_path / "n.csv", "", "moon", "a.png")], folder=tmp_path / "journal")


def test_undo_restores_all_that_can_be_restored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, journal = bytes_in(folder), folder.parent / "journal"
    done = apply(changes_of(folder, "!"), folder=journal)
    (folder / "g.txt").unlink()
    (folder / "g.txt").mkdir()
    (folder / ".a.txt.999999999-0123abcd.part").write_bytes(b"cut off")
    write = caption_changes.write_atomic

    def refuse(path: Path, data: bytes) -> None:
        if path.name == "a.txt":
            raise WriteFailed(f"{path} can't be written: Permission denied.", "")
        write(path, data)

    monkeypatch.setattr(caption_changes, "write_atomic", refuse)
    monkeypatch.setattr(caption_changes, "_AT_ONCE", 1)
    with pytest.raises(WriteFailed, match=r"1 caption file can't be restored: .*a\.txt"):
        undo(done.id, folder=journal)
    changed = {name for name, data in before.items() if (folder / name).read_bytes() != data}
    assert changed == {"a.txt"}
    monkeypatch.undo()
    assert undo(done.id, folder=journal).left == (folder / "g.txt",)
    (folder / "g.txt").rmdir()
    assert bytes_in(folder) == before
