"""Presets: the built-in ones are good, a person's own are never lost."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from backend.base.errors import Refused
from backend.base.paths import BUILTIN_PRESETS
from backend.config import presets
from backend.config.diff import diff
from backend.config.load import Loaded
from backend.config.presets import Preset, Shelf
from backend.config.schema import Config, with_values
from backend.config.toml_io import to_data

BUILTIN = sorted(BUILTIN_PRESETS.glob("*.toml"))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    (tmp_path / "builtin").mkdir()
    (tmp_path / "builtin" / "base.toml").write_text("# The base\n[dataset]\nresolution = 512\n", encoding="utf-8")
    return Shelf(tmp_path / "builtin", tmp_path / "user")


@functools.cache
def builtin(name: str) -> tuple[Preset, Loaded]:
    """A built-in preset and what it loads as, read once."""
    preset = presets.find(name)
    return preset, presets.load(preset)


def two() -> Config:
    return with_values(Config(), {"dataset.batch_size": 2})


def test_there_are_presets() -> None:
    assert {"flux-lora", "flux-lora-512", "flux-lora-80gb"} <= {path.stem for path in BUILTIN}


@pytest.mark.parametrize("path", BUILTIN, ids=lambda p: p.stem)
def test_every_builtin_preset_loads_without_a_word(path: Path) -> None:
    preset, loaded = builtin(path.stem)
    assert preset.builtin and preset.description
    assert loaded.config is not None, [p.sentence() for p in loaded.problems]
    assert loaded.problems == []
    assert "schema_version = " in path.read_text(encoding="utf-8"), "or a changed default would change the preset"
    assert preset.name in (BUILTIN_PRESETS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [p for p in BUILTIN if p.stem != "demo"], ids=lambda p: p.stem)
def test_builtin_presets_name_only_what_differs(path: Path) -> None:
    import tomllib

    _, loaded = builtin(path.stem)
    assert loaded.config is not None
    assert tomllib.loads(path.read_text(encoding="utf-8")) == to_data(loaded.config)
    # levels are drawn as the family's own trainers draw them
    times, family = loaded.config.timesteps, loaded.config.model.family
    drawn = (times.timestep_sampling, times.discrete_flow_shift)
    if family.startswith("qwen_image"):
        assert drawn == ("shift", 2.2)
    elif family == "anima":
        assert drawn[0] == "sigmoid"
    elif family == "hunyuan_video":
        assert drawn == ("shift", 7.0)
    elif family == "sd3":
        assert drawn == ("shift", 3.0)


def test_save_load_list(shelf: Shelf) -> None:
    preset = presets.save(two(), "Meine Katze 猫", "for the  cat\nand more", shelf=shelf)
    assert [p.name for p in presets.list_presets(shelf)] == ["base", "Meine Katze 猫"]
    assert (preset.builtin, preset.description) == (False, "for the cat and more")
    assert presets.load(preset).config == two()
    assert presets.find("meine katze 猫", shelf) == preset


def test_a_loaded_preset_replaces_everything(shelf: Shelf) -> None:
    """Nothing of the old config stays, and the difference can be shown."""
    old = with_values(Config(), {"dataset.batch_size": 2, "network.network_dim": 64})
    new = presets.load(presets.find("base", shelf)).config
    assert new is not None and new == with_values(Config(), {"dataset.resolution": 512})
    changed = {c.path: (c.before, c.after) for c in diff(old, new)}
    assert changed == {
        "dataset.resolution": (1024, 512),
        "dataset.batch_size": (2, 1),
        "network.network_dim": (64, 16),
    }


def test_nothing_is_overwritten_unasked(shelf: Shelf) -> None:
    presets.save(two(), "mine", shelf=shelf)
    for name in ("mine", "MINE", "base"):
        with pytest.raises(Refused, match="already"):
            presets.save(Config(), name, shelf=shelf)
    with pytest.raises(Refused, match="built-in"):
        presets.save(Config(), "Base", overwrite=True, shelf=shelf)
    assert presets.load(presets.find("mine", shelf)).config == two()


def test_an_overwritten_preset_can_come_back_with_its_comments(shelf: Shelf) -> None:
    shelf.user.mkdir()
    text = "# my notes\n[dataset]\nbatch_size = 4 # not more!\n"
    (shelf.user / "mine.toml").write_text(text, encoding="utf-8")
    presets.save(two(), "Mine", overwrite=True, shelf=shelf)
    assert [p.name for p in shelf.user.glob("*.toml")] == ["mine.toml"]
    (old,) = shelf.trash.iterdir()
    assert old.read_text(encoding="utf-8") == text


def test_delete_and_restore(shelf: Shelf) -> None:
    preset = presets.save(two(), "mine", shelf=shelf)
    gone = presets.delete(preset, shelf)
    assert [p.name for p in presets.list_presets(shelf)] == ["base"]
    assert gone.path.parent == shelf.user / ".trash"
    assert presets.restore(gone, shelf) == preset
    again = presets.delete(preset, shelf)
    presets.save(Config(), "mine", shelf=shelf)
    assert presets.restore(again, shelf).name == "mine-2"
    with pytest.raises(Refused, match="no longer in the trash"):
        presets.restore(again, shelf)


def test_deleting_the_same_name_twice_keeps_both(shelf: Shelf) -> None:
    for _ in range(2):
        presets.delete(presets.save(two(), "mine", shelf=shelf), shelf)
    assert len(list(shelf.trash.iterdir())) == 2


def test_rename(shelf: Shelf) -> None:
    preset = presets.save(two(), "mine", "words", shelf=shelf)
    presets.save(Config(), "other", shelf=shelf)
    renamed = presets.rename(preset, "Mine", shelf)
    assert (renamed.name, renamed.description) == ("Mine", "words")
    with pytest.raises(Refused, match="already"):
        presets.rename(renamed, "OTHER", shelf)
    with pytest.raises(Refused, match="no longer exists"):
        presets.delete(preset, shelf)


def test_builtin_presets_are_read_only(shelf: Shelf) -> None:
    base = presets.find("base", shelf)
    with pytest.raises(Refused, match="built in"):
        presets.rename(base, "x", shelf)
    with pytest.raises(Refused, match="built in"):
        presets.delete(base, shelf)
    assert base.path.is_file()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "../x",
        "a/b",
        "a\\b",
        ".hidden",
        "x.",
        "con",
        "LPT1",
        "a:b",
        "x" * 90,
        "a\nb",
        "COM¹",
        "lpt³.x",
        "con .txt",
    ]
    + ["名" * 80, "🦊" * 80],
)
def test_names_that_no_file_can_have(shelf: Shelf, name: str) -> None:
    with pytest.raises(Refused):
        presets.save(Config(), name, shelf=shelf)
    assert not shelf.user.exists()


def test_the_longest_name_can_be_overwritten_and_deleted(shelf: Shelf) -> None:
    name = "名" * 66
    presets.save(Config(), name, shelf=shelf)
    saved = presets.save(Config(), name, overwrite=True, shelf=shelf)
    presets.restore(presets.delete(saved, shelf), shelf)


def test_export_and_import_keep_the_file_as_it_is(shelf: Shelf, tmp_path: Path) -> None:
    shelf.user.mkdir()
    text = "\ufeff# my notes\n[dataset]\nbatch_size = 2 # two\n"
    (shelf.user / "mine.toml").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    exported = presets.export(presets.find("mine", shelf), out)
    assert exported.read_text(encoding="utf-8") == text
    with pytest.raises(Refused, match="exists already"):
        presets.export(presets.find("mine", shelf), exported)
    with pytest.raises(Refused, match="no folder"):
        presets.export(presets.find("mine", shelf), tmp_path / "none" / "x.toml")
    imported = presets.import_(exported, shelf=shelf)
    assert imported.preset is not None and imported.preset.name == "mine-2"
    assert imported.preset.path.read_text(encoding="utf-8") == text
    assert imported.preset.description == "my notes"
    assert presets.load(imported.preset).config == two()
    with pytest.raises(Refused, match="already"):
        presets.import_(exported, "mine", shelf)


def test_a_bad_file_is_not_imported(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("[dataset]\nbatch_sise = 2\nresolution = 'x'\n", encoding="utf-8")
    imported = presets.import_(tmp_path / "x.toml", shelf=shelf)
    assert imported.preset is None and len(imported.problems) == 2
    assert [p.name for p in presets.list_presets(shelf)] == ["base"]


def test_a_broken_file_among_presets_does_not_hide_the_others(shelf: Shelf) -> None:
    shelf.user.mkdir()
    (shelf.user / "bad.toml").write_bytes(b"\xff\xfe\x00")
    (shelf.user / "good.toml").write_text("", encoding="utf-8")
    assert [p.name for p in presets.list_presets(shelf)] == ["base", "bad", "good"]
    assert presets.load(presets.find("bad", shelf)).config is None


def test_find_names_what_there_is(shelf: Shelf) -> None:
    with pytest.raises(Refused, match="base"):
        presets.find("nothing", shelf)


def test_the_description_of_a_file_that_an_editor_changed_is_the_new_one(shelf: Shelf) -> None:
    path = presets.save(two(), "mine", "first", shelf=shelf).path
    assert presets.find("mine", shelf).description == "first"
    text = path.read_text("utf-8")
    for words in ("other", "a longer one"):
        path.write_text(text.replace("first", words, 1), encoding="utf-8")
        assert presets.find("mine", shelf).description == words
