"""Where paths point to, and what differs between two configs."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.base.paths import PROJECT_ROOT, resolve
from backend.config.diff import Change, diff
from backend.config.schema import Config, ImageFolder, Setting, settings, with_values
from tests.tiny.values import other_value


def test_relative_paths_are_below_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("runs") == PROJECT_ROOT / "runs"
    assert (PROJECT_ROOT / "backend" / "config").is_dir()
    assert resolve(tmp_path / "a b%[ü]'猫") == tmp_path / "a b%[ü]'猫"


def test_home_and_its_cousins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve("~/x") == tmp_path / "x"
    assert resolve("~no-such-user/x") == PROJECT_ROOT / "~no-such-user" / "x"


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_path_is_no_place(empty: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        resolve(empty)


@pytest.mark.parametrize("declared", [s for s in settings() if s.path != "model.family"], ids=lambda s: s.path)
def test_every_setting_shows_in_the_difference(declared: Setting) -> None:
    cfg = with_values(Config(), {declared.path: other_value(declared)})
    assert diff(cfg, cfg) == []
    changes = diff(Config(), cfg)
    assert changes and all(c.path.startswith(declared.path) and c.label.startswith(declared.label) for c in changes)


def test_rows_are_compared_cell_by_cell() -> None:
    a = with_values(Config(), {"dataset.folders": [{"path": "a"}, {"path": "b"}]})
    b = with_values(Config(), {"dataset.folders": [{"path": "a", "num_repeats": 2}]})
    row = ImageFolder(path="b").model_dump()
    assert diff(a, b) == [
        Change("dataset.folders[0].num_repeats", "Image folders: Repeats", 1, 2),
        Change("dataset.folders[1]", "Image folders", row, None),
    ]
    assert diff(b, a)[1] == Change("dataset.folders[1]", "Image folders", None, row)
