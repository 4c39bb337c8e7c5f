"""Names that a person gives become parts of longer file names: their bytes are counted before a start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.base.errors import Refused
from backend.base.files import write_atomic
from backend.config import presets
from backend.config.load import parse, ready
from backend.config.schema import Config, with_values
from backend.config.sections.values import LONGEST_ENDING
from backend.runs.folder import Run


@pytest.mark.parametrize("name", ["a" * 100, "名" * 72, "ü" * 100, "🐈" * 54])
def test_a_name_that_is_taken_fits_with_all_that_is_derived_from_it(name: str, tmp_path: Path) -> None:
    loaded = parse({"saving": {"output_name": name, "output_dir": str(tmp_path)}})
    assert loaded.config is not None, loaded.problems
    assert not [p for p in ready(loaded.config) if p.path and p.path.startswith("saving")]
    run = Run.create(loaded.config)
    write_atomic(run.checkpoints_dir / f"{name}{LONGEST_ENDING}", b"whole")
    assert [path.name for path in run.checkpoints_dir.iterdir()] == [f"{name}{LONGEST_ENDING}"]


@pytest.mark.parametrize("name", ["名" * 73, "名" * 79, "🐈" * 55])
def test_a_name_that_is_too_long_is_refused_with_its_bytes(name: str) -> None:
    (problem,) = parse({"saving": {"output_name": name}}).problems
    assert problem.path == "saving.output_name" and f"{len(name.encode())} bytes" in problem.text
    assert "217 plain letters, or 72 Chinese" in problem.remedy


def test_a_disk_with_shorter_names_or_a_deep_folder_is_told_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"saving.output_name": "名" * 60, "saving.output_dir": str(tmp_path / "not" / "made")}
    paths = {p.path for p in ready(with_values(Config(), values))}
    assert paths == {"model.base_model", "dataset.folders"}
    real = os.pathconf
    # an encrypted home folder
    monkeypatch.setattr(os, "pathconf", lambda path, name: 143 if name == "PC_NAME_MAX" else real(path, name))
    (problem,) = [p for p in ready(with_values(Config(), values)) if p.path == "saving.output_dir"]
    assert "does not allow a path as long" in problem.text and "143 bytes" in problem.remedy
    monkeypatch.undo()
    deep = with_values(Config(), {"saving.output_dir": "/" + "/".join(["d" * 200] * 20)})
    (problem,) = [p for p in ready(deep) if p.path == "saving.output_dir"]
    assert "does not allow a path as long" in problem.text and "shorter path" in problem.remedy


def test_a_presets_name_fits_with_that_of_its_copy_in_the_trash(tmp_path: Path) -> None:
    shelf = presets.Shelf(tmp_path / "builtin", tmp_path / "user")
    shelf.builtin.mkdir()
    longest = "名" * 77
    presets.save(Config(), longest, shelf=shelf)
    presets.save(Config(), longest, overwrite=True, shelf=shelf)
    assert presets.restore(presets.delete(presets.find(longest, shelf), shelf), shelf).name == longest
    with pytest.raises(Refused, match="234 bytes, and a preset's name may have 231"):
        presets.save(Config(), "名" * 78, shelf=shelf)
    source = tmp_path / f"{'猫' * 80}.toml"
    write_atomic(source, presets.find(longest, shelf).path.read_bytes())
    imported = presets.import_(source, shelf=shelf)
    assert imported.preset is not None and imported.preset.name == "猫" * 77
