"""Where captions come from, and the versions that are made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from backend.config.load import parse
from backend.config.schema import Config
from backend.dataset.caption_variants import CaptionDraw, CaptionRule
from backend.dataset.items import Item, Scan
from backend.dataset.scan import scan_dataset
from backend.latents.wanted import wanted_text
from backend.plan.make_plan import plan_for


def settings_of(folder: Path, row: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    rows = [{"path": str(folder), **(row or {})}]
    dataset = {"folders": rows, "cache_dir": str(folder.parent / "cache"), **sections.pop("dataset", {})}
    loaded = parse({"dataset": dataset, **sections})
    assert loaded.config is not None, [problem.sentence() for problem in loaded.problems]
    return loaded.config


def look(folder: Path, row: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Scan:
    return scan_dataset(settings_of(folder, row, **sections)).train


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two pictures, the second in a folder below."""
    for number, name in enumerate(("a.png", "in/b.png")):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (number, 90, 20)).save(tmp_path / "pictures" / name)
    return tmp_path / "pictures"


SOURCES: dict[str, dict[str, str]] = {
    "text": {"a.txt": "a cat", "in/b.TXT": "a dog"},
    "HF JSON lines": {
        "metadata.jsonl": '{"file_name": "a.png", "text": "a cat"}\n{"file_name": "in/b.png", "text": "a dog"}\n'
    },
    "HF below": {"a.txt": "a cat", "in/metadata.jsonl": '{"file_name": "b.png", "text": "a dog"}'},
    "kohya, names without ending": {"meta_cap.json": '{"a": {"caption": "a cat"}, "in/b": {"caption": "a dog"}}'},
    "kohya, whole paths and latents": {
        "meta_lat.json": '{"{folder}/a.png": {"caption": "a cat", "train_resolution": [64, 64]},'
        ' "in\\\\b.png": {"tags": "a dog"}}'
    },
    "rows": {"list.json": '[{"image": "a.png", "prompt": "a cat"}, {"image": "./in/b.png", "caption": ["a dog"]}]'},
    "CSV": {"metadata.csv": 'file_name,text\na.png,a cat\nin/b.png,"a dog"\n'},
    "names in other letters": {"meta.json": '{"A.PNG": {"caption": "a cat"}, "IN\\\\B": {"caption": "a dog"}}'},
    "a file counts before the table": {
        "a.txt": "a cat", "metadata.jsonl": '{"file_name": "a.png", "text": "no"}\n{"file_name": "in/b.png", "text":'
        ' "a dog"}'
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_captions_come_from_each_kind_of_file(pictures: Path, kind: str) -> None:
    for name, text in SOURCES[kind].items():
        (pictures / name).write_text(text.replace("{folder}", pictures.as_posix()))
    scan = look(pictures)
    assert [(item.caption, item.texts) for item in scan.items] == [("a cat", ()), ("a dog", ())]
    assert not {"missing_caption", "no_captions", "unused_table"} & {finding.kind for finding in scan.findings}


def test_a_table_elsewhere_json_beside_images_and_what_is_broken(pictures: Path, tmp_path: Path) -> None:
    # a folder whose name begins as that of the images does
    elsewhere = tmp_path / "pictures2" / "meta.json"
    elsewhere.parent.mkdir()
    elsewhere.write_text('{"a": {"caption": "a cat", "tags": "black, small"}}')
    assert look(pictures, {"metadata_file": str(elsewhere)}).items[0].caption == "a cat, black, small"
    (pictures / "a.json").write_text('{"tags": ["1girl", "solo"], "score": 3}')
    (pictures / "in" / "b.json").write_text('{"score": 3}')
    scan = look(pictures, dataset={"caption_extension": ".json"})
    assert [item.caption for item in scan.items] == ["1girl, solo"]
    broken = next(finding for finding in scan.findings if finding.kind == "bad_caption")
    assert "b.json" in broken.text and "none of its names" in broken.text and "UTF-8" not in broken.remedy
    # of several files the one that is broken is named
    (pictures / "in" / "b.txt").write_text("a dog")
    scan = look(pictures, captions={"more_caption_extensions": [".json"]})
    assert "b.json" in next(finding for finding in scan.findings if finding.kind == "bad_caption").text
    (pictures / "in" / "b.txt").unlink()
    elsewhere.write_text('{"c": {"caption": "a cat"}}')
    unused = [finding for finding in look(pictures, {"metadata_file": str(elsewhere)}).findings if finding.files]
    assert [(each.kind, each.severity) for each in unused if "meta.json" in each.text] == [("unused_table", "warning")]
    (tmp_path / "meta.jsonl").write_text('{"file_name": "a.png", "text": "a cat"}\n\n{"file_name": "b.png')
    scan = look(pictures, {"metadata_file": str(tmp_path / "meta.jsonl")})
    assert "line 3" in next(finding for finding in scan.findings if finding.kind == "broken_table").text
    elsewhere.write_text('{"a": ')
    scan = look(pictures, {"metadata_file": str(elsewhere)})
    broken = next(finding for finding in scan.findings if finding.kind == "broken_table")
    assert "meta.json" in broken.text and "not valid JSON" in broken.text


def test_a_table_below_says_nothing_of_images_beside_its_folder(pictures: Path) -> None:
    (pictures / "in" / "metadata.jsonl").write_text(
        '{"file_name": "a.png", "text": "another"}\n{"file_name": "in/b.png", "text": "a dog"}'
    )
    assert [item.caption for item in look(pictures).items] == ["", "a dog"]
    with (pictures / "in" / "metadata.jsonl").open("a") as table:
        table.write('\n{"file_name": "../a.png", "text": "a cat"}')
    assert [item.caption for item in look(pictures).items] == ["a cat", "a dog"]


def test_a_validation_set_of_trained_images_has_its_plain_captions_too(pictures: Path) -> None:
    (pictures / "a.txt").write_text("a, b, c, d, e, f, g")
    same = [{"path": str(pictures), "name": "same"}]
    cfg = settings_of(pictures, captions={"shuffle_caption": True, "caption_variants": 2},
                      validation={"validation_folders": same})  # fmt: skip
    scan = scan_dataset(cfg)
    assert "a, b, c, d, e, f, g" in {words.caption for words in wanted_text(cfg, plan_for(cfg, scan))}


def test_several_captions_prefix_suffix_and_the_folders_own_trigger(pictures: Path) -> None:
    (pictures / "a.txt").write_text("a cat\na black cat\n")
    (pictures / "a.caption").write_text("an animal")
    (pictures / "in" / "b.txt").write_text("a dog")
    row = {"caption_prefix": "photo of", "caption_suffix": "at home", "trigger_word": "sks"}
    options = {"caption_lines": True, "more_caption_extensions": [".caption"]}
    cfg = settings_of(pictures, row, captions=options, dataset={"trigger_word": "other"})
    scan = scan_dataset(cfg)
    first, second = scan.train.items
    (pictures / "in" / "b.txt").write_text("")
    empty = next(f for f in scan_dataset(cfg).train.findings if f.kind == "empty_caption")
    assert "only the trigger word 'sks'" in empty.remedy
    whole = [f"sks, photo of {text} at home" for text in ("a cat", "a black cat", "an animal")]
    assert first.caption == whole[0] and second.caption == "sks, photo of a dog at home" and second.texts == ()
    assert Item.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    plan = plan_for(cfg, scan)
    assert {plan.captions.caption(first, epoch, 0) for epoch in range(40)} == set(whole)
    # a table of versions follows from the plan, without one for measuring where nothing is measured
    assert [words.caption for words in wanted_text(cfg, plan)] == ["", *whole, second.caption]
    # without the settings the lines are one caption, as they always were
    assert look(pictures).items[0].caption == "a cat a black cat"


def test_the_plan_says_what_versions_cost(pictures: Path, tiny_flux: Path) -> None:
    (pictures / "a.txt").write_text("one, two, three, four, five, six")
    changing = {"shuffle_caption": True, "caption_variants": 5}
    base = {"model": {"base_model": str(tiny_flux), "text_length": 16}}
    cfg = settings_of(pictures, captions=changing, **base)
    plan = plan_for(cfg, scan_dataset(cfg))
    finding = next(each for each in plan.findings if each.kind == "caption_variants")
    assert "captions of 1 image change: up to 5 versions" in finding.text and "in the cache" in finding.text
    measured = settings_of(pictures, captions=changing, validation={"picture_losses": True}, **base)
    # what is measured has its plain caption besides
    assert len(wanted_text(measured, plan_for(measured, scan_dataset(measured)))) == len(wanted_text(cfg, plan)) + 1


TAGS = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=8, unique=True)


@settings(max_examples=60, deadline=None)
@given(
    TAGS,
    st.integers(0, 9),
    st.booleans(),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.integers(0, 2**64 - 1),
    st.sampled_from([",", ";", " "]),
)
def test_kept_tags_stay_in_front_and_no_tag_is_made_up(
    tags: list[str], keep: int, shuffle: bool, rate: float, number: int, separator: str
) -> None:
    rule = CaptionRule(
        shuffle_caption=shuffle, keep_tokens=keep, caption_tag_dropout_rate=rate, caption_separator=separator
    )
    text = separator.join(tags)
    made = [tag.strip() for tag in rule.version([text], number).split(separator)]
    made = [tag for tag in made if tag]
    assert made[:keep] == tags[:keep] and len(set(made)) == len(made) and set(made) <= set(tags)
    assert rate or set(made) == set(tags)
    assert shuffle or made == [tag for tag in tags if tag in made]
    assert rate < 1 or made == tags[:keep]
    assert rule.version([text], number) == rule.version([text], number)
    assert [tag.strip() for tag in rule.plain(text).split(separator) if tag.strip()] == tags


def test_separators_groups_and_wildcards() -> None:
    rule = CaptionRule(
        shuffle_caption=True, keep_tokens_separator="|||", secondary_separator=";;;", enable_wildcard=True
    )
    text = "1girl, solo ||| {red|{dark |light }blue} hair, hat;;;coat, {{x}} ||| best"
    made = [rule.version([text], number) for number in range(60)]
    assert all(each.startswith("1girl, solo, ") and each.endswith(", best") for each in made)
    assert all("hat, coat" in each and "{x}" in each and "|" not in each for each in made)
    assert {word for each in made for word in ("red", "dark blue", "light blue") if f"{word} hair" in each} == {
        "red", "dark blue", "light blue"
    }  # fmt: skip
    assert len(set(made)) > 10
    assert rule.plain(text) == "1girl, solo, red hair, hat, coat, {x}, best"
    # two braces that close two choices are no brace that stays
    for text, words in (("{red|{dark|light}}", {"red", "dark", "light"}), ("{{{a|b}}}", {"{a}", "{b}"}),
                        ("{a|{{b}}} c", {"a c", "{b} c"})):  # fmt: skip
        assert rule.changes(text) and {rule.version([text], number) for number in range(40)} == words
    # a caption is left as it is written where nothing is asked for
    assert CaptionRule().plain("a,b ; c") == "a,b ; c" and CaptionRule(enable_wildcard=True).plain("a,b") == "a,b"


def test_the_draw_follows_from_seed_epoch_and_place(tmp_path: Path) -> None:
    rule = CaptionRule(shuffle_caption=True, caption_tag_dropout_rate=0.3, caption_variants=6)
    item = Item("k", tmp_path / "a.png", 64, 64, "a, b, c, d", texts=("a, b, c, d",), trigger="sks")
    draw = CaptionDraw(rule=rule, seed=3)
    drawn = [draw.caption(item, epoch, 2) for epoch in range(80)]
    assert drawn == [draw.caption(item, epoch, 2) for epoch in range(80)]
    assert set(drawn) == set(draw.captions(item)) and 1 < len(set(drawn)) <= 6
    assert all(each.startswith("sks, ") for each in drawn)
    # also where the caption has it already
    own = replace(item, texts=("a, b, old Sks car, c",))
    assert all(each.startswith("old Sks car, ") or each == "old Sks car" for each in draw.captions(own))
    other = CaptionDraw(rule=rule, seed=4)
    assert [other.caption(item, epoch, 2) for epoch in range(80)] != drawn
    # the cache serves every seed
    assert other.captions(item) == draw.captions(item)
    fresh = CaptionDraw(rule=CaptionRule(shuffle_caption=True, caption_variants=1, fresh=True), seed=3)
    assert len({fresh.caption(item, epoch, 2) for epoch in range(80)}) > 10
