"""Captions of many images are changed on the page as a filter shows them, whatever file they are in."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from PIL import Image

from backend.base.errors import Refused
from backend.config.schema import Config, with_values
from backend.dataset import caption_changes
from backend.dataset.caption_edits import Edit
from backend.dataset.caption_journal import Kept
from backend.dataset.scan import scan_dataset
from backend.runs.captioning.folder import Result, ResultFolder
from backend.runs.captioning.request import CaptionOptions, CaptionRequest
from backend.runs.captioning.targets import targets_of
from gui import dataset_scan, near_duplicates
from gui.bulk_captions import BulkCaptions, difference
from gui.caption_job import CaptionJob
from gui.caption_writing import CaptionWriter
from gui.dataset_scan import PageScan
from gui.image_filter import ImageFilter, ImageIndex
from gui.near_duplicates import NearDuplicates

CAPTIONS = {"a": "cat, red hat", "b": "cat, tree", "c": "dog,tree", "d": ""}


@pytest.fixture
def scan(tmp_path: Path) -> PageScan:
    folder = tmp_path / "i"
    folder.mkdir()
    for number, (name, caption) in enumerate(CAPTIONS.items()):
        Image.new("RGB", (64 + 64 * (number % 2), 64), (number, 0, 0)).save(folder / f"{name}.png")
        if caption:
            (folder / f"{name}.txt").write_text(caption)
    Image.new("RGB", (64, 128)).save(folder / "e.png")
    (folder / "metadata.csv").write_text('file_name,text\ne.png,"cat, moon"\n')
    (folder / "broken.png").write_bytes(b"no image")
    data = {
        "folders": [{"path": str(folder)}],
        "cache_dir": str(tmp_path / "c"),
        "resolution": 64,
        "trigger_word": "zo",
    }
    cfg = Config.model_validate({"dataset": {**data, "min_bucket_size": 32, "bucket_step": 16}})
    scan = PageScan(tmp_path / "page")
    scan._take(cfg, scan_dataset(cfg), 1)
    return scan


def ended(bulk: BulkCaptions) -> str:
    while bulk.writer.work.state == "running":
        time.sleep(0.01)
    return bulk.writer.work.text


def names(scan: PageScan, numbers: list[int] | None) -> str:
    return "".join(scan.items[number].path.stem for number in numbers or ())


def test_images_are_filtered_and_their_tags_counted(scan: PageScan, monkeypatch: pytest.MonkeyPatch) -> None:
    index = ImageIndex(scan)
    for wanted, shown in (
        (ImageFilter(has=["cat"]), "abe"),
        (ImageFilter(has=["cat", "tree"]), "b"),
        (ImageFilter(has=["tree"], without=["cat"]), "c"),
        (ImageFilter(text="RED"), "a"),
        (ImageFilter(status="no_caption"), "d"),
        (ImageFilter(shape="portrait"), "e"),
        (ImageFilter(bucket=scan.bucket(scan.items[1])), "bd"),
        (ImageFilter(has=["hat"]), ""),
    ):
        assert names(scan, index.matching(wanted)) == shown, wanted
    assert index.matching(ImageFilter()) is None
    # as many pages as the filtered images fill
    monkeypatch.setattr(dataset_scan, "PAGE", 2)
    assert [scan.page(0, shown)["pages"] for shown in (None, [1], [])] == [3, 1, 1]
    monkeypatch.undo()
    assert index.tags(None, "")["tags"][:3] == [("zo", 5), ("cat", 3), ("tree", 2)]
    assert index.tags([0], "HAT") == {"tags": [("red hat", 1)], "of": 1}
    assert ["square", "Square", 2] in index.facets()["shape"]
    # while the plan is made again, another tab looks at the images
    buckets, dataset, plan = index.facets()["bucket"], scan._scan, dataset_scan.plans.for_page
    assert buckets and scan._config is not None and dataset is not None
    monkeypatch.setattr(dataset_scan.plans, "for_page", lambda *of: (index.facets(), plan(*of))[1])
    scan._take(scan._config, dataset)
    monkeypatch.undo()
    assert index.facets()["bucket"] == buckets
    # what is cut off, as the plan's fit has it, and what is left out
    lists = {each["title"]: each["items"] for each in scan.result["lists"]} if scan.result else {}
    assert [row["name"] for row in lists["Left out"]] == ["broken.png"]
    crops = [item["crop"] for item in scan.page(0)["items"]]
    assert crops[0] is None and crops[1]["box"]["height"] == 1.0
    assert crops[1]["lost"] == pytest.approx(1 - crops[1]["box"]["width"]) and crops[1]["box"]["left"] > 0


def test_a_change_is_shown_made_and_undone_by_another_page(scan: PageScan) -> None:
    folder, bulk = scan.items[0].path.parent, BulkCaptions(CaptionWriter(scan))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    preview = bulk.preview(Edit(kind="rename", find="cat", text="lynx"), range(5))
    assert [row["name"] for row in bulk.facts(preview.id, 0)["rows"]] == ["a.png", "b.png", "e.png"]
    bulk.start(preview.id)
    assert ended(bulk) == "Rename “cat” to “lynx”. Files changed: 3."
    assert [scan.items[number].caption for number in (0, 1, 4)] == [
        f"zo, lynx, {tag}" for tag in ("red hat", "tree", "moon")
    ]
    assert ImageIndex(scan).matching(ImageFilter(status="edited")) == [0, 1, 4]
    with pytest.raises(Refused, match="out of date"):
        bulk.start(preview.id)
    # a new file for what has none, and a caption that somebody changes before it is written
    preview = bulk.preview(Edit(kind="add", text="rain", at_end=False), [2, 3])
    (folder / "c.txt").write_text("a wolf")
    bulk.start(preview.id)
    assert "c.txt" in ended(bulk) and bulk.writer.work.state == "failed" and not (folder / "d.txt").exists()
    (folder / "c.txt").write_bytes(before["c.txt"])
    bulk.start(bulk.preview(Edit(kind="add", text="rain, dog", at_end=False), [2, 3]).id)
    assert "Files changed: 2." in ended(bulk)
    assert ((folder / "c.txt").read_text(), (folder / "d.txt").read_text()) == ("rain, dog,tree", "rain, dog")
    other = BulkCaptions(CaptionWriter(scan))
    for words in ("Add “rain, dog” in front", "Rename “cat” to “lynx”"):
        entry = other.writer.facts()["undo"]
        assert entry["what"] == words
        other.writer.start_undo(entry["id"])
        ended(other)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [item.caption for item in scan.items][3:] == ["zo", "zo, cat, moon"]
    assert other.writer.facts()["undo"] is None


def test_a_models_captions_that_are_stopped_stay_as_far_as_written_and_are_undone(
    scan: PageScan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [item.path for item in scan.items]
    folder = images[0].parent
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    results = ResultFolder(tmp_path / "captions" / ("0" * 16))
    targets = tuple(targets_of(scan.items, ".txt", "replace"))
    results.begin(CaptionRequest(options=CaptionOptions(model="m", existing="replace"), targets=targets))
    stamps = {path: path.stat() for path in images}
    results.append(
        Result(image=str(path), size=stamp.st_size, changed_ns=stamp.st_mtime_ns, text=f"new {path.stem}")
        for path, stamp in stamps.items()
    )
    writer = CaptionWriter(scan)
    job, bulk = CaptionJob(writer, tmp_path), BulkCaptions(writer)
    write, refusals = caption_changes._write, []

    def stopping(kept: Kept) -> bool:
        try:
            writer.start_undo("another")
        except Refused as refused:
            refusals.append(str(refused))
        writer.work.stop.set()
        return write(kept)

    # four files at a time, and a stop while the first four are written
    monkeypatch.setattr(caption_changes, "_AT_ONCE", 1)
    monkeypatch.setattr(caption_changes, "_write", stopping)
    assert job.difference(0)["count"] == 5
    job.write()
    assert ended(bulk) == "Caption files written: 4. Stopped; files that are not written: 1."
    assert len(refusals) == 4 and all("being changed" in text for text in refusals)
    facts = writer.facts()
    assert (facts["done"], facts["total"], facts["undo"]["files"], facts["made"]) == (4, 5, 4, facts["undo"]["id"])
    assert [row["name"] for row in job.difference(0)["rows"]] == ["e.png"], "the rest is still offered"
    assert [item.caption for item in scan.items[:4]] == [f"zo, new {name}" for name in "abcd"]
    writer.start_undo(facts["undo"]["id"])
    assert ended(bulk) == "Files restored: 4."
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_all_but_the_best_of_a_group_are_left_out_and_brought_back(
    scan: PageScan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real search: all five are flat and dark."""
    monkeypatch.setattr(near_duplicates, "_MEMORY", tmp_path / "c")
    scan.folder.mkdir()
    near = NearDuplicates(scan)
    assert near.start()
    while near.job.state == "running":
        time.sleep(0.02)
    (group,) = near.facts(0)["shown"]
    best = next(item for item in group["items"] if item["best"])
    # of the largest ones the first with a caption
    assert (best["name"], group["count"], group["out"]) == ("b.png", 5, True)
    others = [item["path"] for item in group["items"] if not item["best"]]
    setting = "dataset.excluded_images"
    assert near.change(scan.number, 0, ["/elsewhere.png", others[0]], True) == {setting: ["/elsewhere.png", *others]}
    (group,) = near.facts(0, others)["shown"]
    assert not group["out"] and [item["name"] for item in group["items"] if item["left"]] == [
        Path(path).name for path in others
    ]
    assert near.change(scan.number, 0, others, False) == {setting: None}
    assert near.change(scan.number + 1, 0, [], True) is None and near.change(scan.number, 1, [], True) is None
    # what is left out is out of the next scan, and so is the group
    cfg = with_values(scan._config, {setting: others})
    assert [item.path.name for item in scan_dataset(cfg).train.items] == ["b.png"]
    assert scan.facts(cfg)["result"]["stale"] and not scan.facts(scan._config)["result"]["stale"]


def test_texts_are_edited_and_wrong_expressions_end(scan: PageScan, monkeypatch: pytest.MonkeyPatch) -> None:
    for edit, text, after in (
        (Edit(kind="remove", find="b"), "b, a,  c", "a,  c"),
        (Edit(kind="rename", find="b", text="c"), "a, b, c", "a, c"),
        (Edit(kind="add", text="x, a"), "a, b,", "a, b, x"),
        (Edit(kind="add", text="x", lines=True, at_end=False), "a\nx, b", "x, a\nx, b"),
        (Edit(kind="replace", find="B", text="d\\1"), "a b B", "a d\\1 d\\1"),
        (Edit(kind="replace", find=r"(\w+) hat", text=r"hat of \1", regex=True), "a Red hat", "a hat of Red"),
    ):
        assert edit.of_all([text]) == [after], edit
    assert difference("a red cat", "a blue cat") == [["same", "a "], ["old", "red"], ["new", "blue"], ["same", " cat"]]
    bulk = BulkCaptions(CaptionWriter(scan))
    with pytest.raises(Refused, match="not valid"):
        bulk.preview(Edit(kind="replace", find="(", regex=True), [0])
    # the page goes on while an expression takes for ever
    monkeypatch.setattr("backend.dataset.caption_edits._PATIENCE_S", 1.0)
    (scan.items[0].path.with_suffix(".txt")).write_text("a" * 60)
    with pytest.raises(Refused, match="takes longer"):
        bulk.preview(Edit(kind="replace", find="(a+)+b", regex=True), [0])
