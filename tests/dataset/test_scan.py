"""Scanning folders: what is found, what is named, and what a second scan costs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from PIL import Image

from backend.config.schema import Config
from backend.dataset import scan as scanning
from backend.dataset.images import BadImage, probe
from backend.dataset.items import Finding, Scan
from backend.dataset.scan import scan, scan_dataset
from backend.dataset.scan_state import FolderSpec
from tests.tiny.pictures import BLUE, RED, cut_off, noise_jpeg, picture, turned_jpeg, with_caption


def look(*folders: Path, **options: object) -> Scan:
    return scan([FolderSpec(folder) for folder in folders], **options)


def finding(result: Scan, kind: str) -> Finding:
    """The one finding of a kind."""
    (only,) = [each for each in result.findings if each.kind == kind]
    return only


def kinds(result: Scan) -> set[str]:
    return {each.kind for each in result.findings}


def test_items_carry_all_that_later_steps_need(tmp_path: Path) -> None:
    path = with_caption(picture(tmp_path / "a.png", (40, 20)), "a red field")
    result = look(tmp_path)
    (item,) = result.items
    assert item.key == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (item.path, item.width, item.height, item.repeats) == (path, 40, 20, 1)
    assert (item.caption, item.caption_path, item.has_alpha) == ("a red field", tmp_path / "a.txt", False)
    assert result.problems == []
    assert (result.pictures, result.captions) == (1, 1)


def test_excluded_files_are_listed_and_nothing_else_is_said_of_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with_caption(picture(tmp_path / f"{name}.png"), f"a field {name}")
    (tmp_path / "broken.png").write_bytes(b"no image")
    picture(tmp_path / "bare.png")
    names = ("b.png", "broken.png", "bare.png", "not there.png")
    data = {"folders": [{"path": str(tmp_path)}], "excluded_images": [str(tmp_path / name) for name in names]}
    dataset = scan_dataset(Config.model_validate({"dataset": data}), cache_dir=tmp_path / "cache").train
    assert [item.path.name for item in dataset.items] == ["a.png"]
    left_out = {Path(path).name: why for path, why in dataset.left_out}
    assert left_out == dict.fromkeys(names[:3], "it is one of the excluded images")
    assert not {"unreadable", "no_caption", "orphans"} & kinds(dataset)
    whole = scan([FolderSpec(tmp_path)])
    assert kinds(whole) > kinds(dataset) and len(whole.items) == 3


def test_d1_turned_photo_has_the_turned_size(tmp_path: Path) -> None:
    with_caption(turned_jpeg(tmp_path / "a.jpg", 6))
    (item,) = look(tmp_path).items
    assert (item.width, item.height) == (20, 40)


def test_d2_transparency_is_said(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    with_caption(tmp_path / "clear.png")
    with_caption(picture(tmp_path / "solid.png"))
    result = look(tmp_path)
    notice = finding(result, "transparent")
    assert notice.severity == "note" and "clear.png" in notice.text and "solid.png" not in notice.text
    assert notice.setting == "dataset.transparency"
    assert [item.has_alpha for item in result.items] == [True, False]


def test_d3_truncated_jpeg_is_listed_and_skipped(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "good.png"))
    with_caption(cut_off(noise_jpeg(tmp_path / "bad.jpg")))
    result = look(tmp_path)
    assert [item.path.name for item in result.items] == ["good.png"]
    notice = finding(result, "unreadable")
    assert "bad.jpg" in notice.text and "cut off" in notice.text and notice.remedy
    assert [problem.severity for problem in result.problems] == ["warning"]


def test_many_damaged_files_make_one_sentence_with_all_names(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.png").write_bytes(b"no picture")
    notice = finding(look(tmp_path), "unreadable")
    assert "30 images" in notice.text and len(notice.files) == 30


@pytest.mark.parametrize("name", ["a.JPG", "a.Jpg", "a.jpeg", "a.webp", "a.PNG", "a.bmp", "a.TIFF", "a.jfif"])
def test_d4_endings_in_any_case(tmp_path: Path, name: str) -> None:
    kind = {"jpg": "JPEG", "jpeg": "JPEG", "jfif": "JPEG", "tiff": "TIFF"}.get(name[2:].lower(), name[2:].upper())
    Image.new("RGB", (8, 8)).save(tmp_path / name, kind)
    assert [item.path.name for item in look(tmp_path).items] == [name]


def test_caption_ending_in_any_case(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "a.TXT").write_text("a caption")
    assert look(tmp_path).items[0].caption == "a caption"


def test_d5_rubbish_is_ignored_and_counted(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "x.jpg"))
    (tmp_path / "._x.jpg").write_bytes(b"mac")
    (tmp_path / "Thumbs.db").write_bytes(b"windows")
    (tmp_path / ".DS_Store").write_bytes(b"mac")
    picture(tmp_path / ".ipynb_checkpoints" / "x-checkpoint.jpg")
    picture(tmp_path / "__MACOSX" / "x.jpg")
    (tmp_path / "notes.md").write_text("mine")
    result = look(tmp_path)
    assert [item.path.name for item in result.items] == ["x.jpg"]
    assert result.ignored == {
        "hidden or system files": 2,
        "hidden or system folders": 2,
        "macOS shadow files (._*)": 1,
    }
    assert result.other == {".md": 1}
    assert any("ignored: " in line for line in result.summary())
    assert kinds(result) == set()


def test_d6_foreign_encodings_are_decoded_or_named(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "west.png", colour=RED), b"it\x92s a caf\xe9 at night")
    with_caption(picture(tmp_path / "east.png", colour=BLUE), "一只黑色的猫".encode("gbk"))
    result = look(tmp_path)
    (item,) = result.items
    assert item.caption == "it\u2019s a caf\u00e9 at night"
    assert "west.txt" in finding(result, "cp1252_caption").text
    bad = finding(result, "bad_caption")
    assert "east.txt" in bad.text and "UTF-8" in bad.remedy


def test_d8_empty_caption_is_a_warning_and_trains_empty(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "a.png", colour=RED), b"")
    with_caption(picture(tmp_path / "b.png", colour=BLUE), b" \n ")
    result = look(tmp_path)
    assert [item.caption for item in result.items] == ["", ""]
    notice = finding(result, "empty_caption")
    assert notice.severity == "warning" and len(notice.files) == 2 and "a.txt" in notice.text


def test_missing_captions_are_counted_with_the_fix(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "a.png", colour=RED))
    picture(tmp_path / "b.png", colour=BLUE)
    notice = finding(look(tmp_path), "missing_caption")
    assert "1 of 2" in notice.text and "b.png" in notice.text
    assert "trigger word 'sks'" in finding(look(tmp_path, trigger_word="sks"), "missing_caption").remedy


def test_no_captions_at_all_and_another_ending_beside_them(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", colour=RED)
    picture(tmp_path / "b.png", colour=BLUE)
    assert "None of the 2 images" in finding(look(tmp_path), "no_captions").text
    for name in ("a", "b"):
        (tmp_path / f"{name}.caption").write_text("mine")
    notice = finding(look(tmp_path), "no_captions")
    assert ".caption" in notice.remedy and notice.setting == "dataset.caption_extension"
    result = look(tmp_path, caption_extension=".caption")
    assert [item.caption for item in result.items] == ["mine", "mine"] and kinds(result) == set()


def test_trigger_word_is_in_the_items_caption(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "a.png"), "a cat")
    assert look(tmp_path, trigger_word="sks").items[0].caption == "sks, a cat"


def test_d10_named_folder_chosen_instead_of_its_parent(tmp_path: Path) -> None:
    inner = tmp_path / "set" / "10_cat"
    with_caption(picture(inner / "a.png"))
    result = look(inner)
    assert result.items[0].repeats == 1
    notice = finding(result, "named_folder")
    assert "10_cat" in notice.text and "1 repeat" in notice.text and str(tmp_path / "set") in notice.remedy
    (report,) = result.folders
    assert (report.offer, report.named_repeats, report.repeats) == (str(tmp_path / "set"), 10, 1)


def test_d10_parent_of_named_folders_states_final_repeats(tmp_path: Path) -> None:
    for number, name in enumerate(("10_cat", "3_dog/inner", "plain", "0_old")):
        with_caption(picture(tmp_path / name / "a.png", colour=(number, 0, 0)))
    result = scan([FolderSpec(tmp_path, 2)])
    assert {item.path.parent.name: item.repeats for item in result.items} == {"10_cat": 20, "inner": 6, "plain": 2}
    notice = finding(result, "final_repeats")
    assert "10_cat x 20" in notice.text and "plain x 2" in notice.text and "inner x 6" in notice.text
    zero = finding(result, "zero_repeats")
    assert "0_old" in zero.text and zero.severity == "warning" and "1_old" in zero.remedy
    assert {Path(report.path).name: report.repeats for report in result.folders}["0_old"] == 0


ODD_NAMES = ["Über uns", "100%", "it's", 'say "hi"', "猫の絵", "[a-z]", "a;b&c", "$HOME", "{x}", "tab\there", "-rf"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_d12_odd_path_names(tmp_path: Path, name: str) -> None:
    with_caption(picture(tmp_path / name / f"{name}.png"), "a caption")
    result = look(tmp_path / name, cache_dir=tmp_path / "cache")
    assert [item.caption for item in result.items] == ["a caption"]
    assert Scan.from_dict(result.to_dict()) == result


@pytest.mark.skipif(os.name == "nt", reason="names that are no text exist on Linux only")
def test_name_that_is_no_utf8_text(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    picture(folder / "a.png").rename(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.png"))
    result = look(folder, cache_dir=tmp_path / "cache")
    assert len(result.items) == 1 and len(look(folder, cache_dir=tmp_path / "cache").items) == 1


def test_folder_faults_are_errors_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "only_text").mkdir()
    (tmp_path / "only_text" / "a.md").write_text("x")
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone" / "a.heic").write_bytes(b"x")
    expected = {
        tmp_path / "gone": ("missing_folder", "does not exist"),
        picture(tmp_path / "file.png"): ("not_a_folder", "is a file"),
        tmp_path / "empty": ("no_pictures", "it is empty"),
        tmp_path / "only_text": ("no_pictures", "1 other file"),
        tmp_path / "phone": ("no_pictures", ".heic"),
    }
    for path, (kind, text) in expected.items():
        spec = FolderSpec(path, 1, "dataset.folders[3].path")
        notice = finding(scan([spec]), kind)
        assert notice.severity == "error" and text in notice.text and notice.remedy and str(path) in notice.text
        assert notice.setting == "dataset.folders[3].path"


def test_kinds_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "a.png"))
    (tmp_path / "b.HEIC").write_bytes(b"x")
    (tmp_path / "c.gif").write_bytes(b"x")
    result = look(tmp_path)
    notices = [each for each in result.findings if each.kind == "unread_kind"]
    assert [each.text.split(" can't")[0] for each in notices] == ["1 .gif file", "1 .heic file"]
    assert result.pictures == 3


def test_copies_and_folders_chosen_twice(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "a.png"))
    with_caption(picture(tmp_path / "in" / "b.png"))
    result = look(tmp_path, tmp_path / "in")
    assert "a.png" in finding(result, "copies").text
    assert finding(result, "chosen_twice").files == (str(tmp_path / "in" / "b.png"),)
    assert len(result.items) == 3


def test_shared_and_lone_captions(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", colour=RED)
    with_caption(picture(tmp_path / "a.webp", colour=BLUE))
    (tmp_path / "lone.txt").write_text("x")
    result = look(tmp_path)
    assert "a.png and a.webp" in finding(result, "shared_caption").text
    assert "lone.txt" in finding(result, "lone_caption").text
    assert result.captions == 1 and result.other == {".txt": 1}


def test_sub_folders_are_read_and_link_loops_end(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "b" / "deep" / "x.png", colour=RED))
    with_caption(picture(tmp_path / "a" / "y.png", colour=BLUE))
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    result = look(tmp_path)
    assert [item.path.name for item in result.items] == ["y.png", "x.png"]
    assert {report.path: report.images for report in result.folders} == {
        str(tmp_path / "a"): 1,
        str(tmp_path / "b" / "deep"): 1,
    }


def test_order_does_not_depend_on_threads(tmp_path: Path) -> None:
    for number in range(20):
        with_caption(picture(tmp_path / f"{number:02}.png", colour=(number, 0, 0)))
    assert look(tmp_path, workers=1) == look(tmp_path, workers=4)


def test_vanished_picture_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png", colour=RED)
    gone = picture(tmp_path / "b.png", colour=BLUE)
    real = scanning._measure
    monkeypatch.setattr(scanning, "_measure", lambda paths, *rest: (gone.unlink(), real(paths, *rest))[1])
    result = look(tmp_path)
    assert [item.path.name for item in result.items] == ["a.png"]
    assert "b.png" in finding(result, "unreadable").text


def test_empty_picture_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    assert "the file is empty" in finding(look(tmp_path), "unreadable").text


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices in folders exist on POSIX only")
def test_pipes_and_devices_are_named_and_never_opened(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "a.png"))
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "a.caption")
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    result = look(tmp_path)
    assert [item.path.name for item in result.items] == ["a.png"]
    notice = finding(result, "special_file")
    assert notice.severity == "warning" and {Path(name).name for name in notice.files} == {
        "pipe.png",
        "a.caption",
        "endless.png",
    }
    # named directly, as a control picture of a sample is
    with pytest.raises(BadImage, match="pipe"):
        probe(tmp_path / "pipe.png")


def test_tables_that_are_not_read_are_named(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "metadata.parquet").write_text("PAR1")
    (tmp_path / "others.jsonl").write_text('{"file_name": "b.png", "text": "a dog"}\n')
    notice = finding(look(tmp_path), "unused_table")
    assert notice.severity == "warning" and "metadata.parquet, others.jsonl" in notice.text
    with_caption(tmp_path / "a.png")
    assert finding(look(tmp_path), "unused_table").severity == "note"


def test_other_json_beside_pictures_is_no_caption_table(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "a.png"))
    (tmp_path / "a.json").write_text('{"image": "a.png", "caption": {"text": "mine"}}')
    (tmp_path / "settings.json").write_text('{"width": {"value": 3}}')
    (tmp_path / "log.jsonl").write_text('{"step": 3}\n')
    (tmp_path / "broken.json").write_text("[" * 5000)
    (tmp_path / "loss.csv").write_text("step,loss\n")
    assert not {"caption_table", "unused_table", "broken_table"} & set(kinds(look(tmp_path)))
