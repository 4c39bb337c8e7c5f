"""Tags and notes of a run, and the words that runs are found by."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backend.config.load import parse
from backend.runs.errors import RunError
from backend.runs.folder import Run
from backend.runs.notes import FILE, Notes, NotesChanged, read_notes, write_notes
from backend.runs.search import Query, RunIndex


def make(root: Path, name: str = "fox", **sections: dict) -> Run:
    config = parse({"saving": {"output_dir": str(root), "output_name": name}, **sections}).config
    assert config is not None
    return Run.create(config)


def test_notes_move_with_the_folder_and_are_never_lost(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert read_notes(run) == Notes()
    written = write_notes(run, Notes(("#Fox ", "fox", "  style   test", ""), "good at 150\r\n\n"), before=Notes())
    assert written == Notes(("Fox", "style test"), "good at 150")
    moved = Run(shutil.move(run.path, tmp_path / "elsewhere"))
    assert read_notes(moved) == written
    # what somebody else wrote meanwhile stays
    with pytest.raises(NotesChanged, match="changed elsewhere"):
        write_notes(moved, Notes((), "mine"), before=Notes())
    with pytest.raises(RunError, match="at most 30 tags"):
        write_notes(moved, Notes(tuple(map(str, range(31)))), before=written)
    assert read_notes(moved) == written
    (moved.path / FILE).write_text('{"tags": 3}')
    with pytest.raises(RunError, match=r"notes\.json"):
        write_notes(moved, Notes((), "mine"))
    assert (moved.path / FILE).read_text() == '{"tags": 3}'


def test_runs_are_found_by_words_settings_and_state(tmp_path: Path) -> None:
    small = make(tmp_path, "fox", network={"network_dim": 16}, model={"base_model": "/models/flux1-dev.safetensors"})
    large = make(
        tmp_path, "portrait", network={"network_dim": 32},
        optimizer={"optimizer": "prodigy", "learning_rate": 1.0}, training={"deterministic": True},
    )  # fmt: skip
    write_notes(large, Notes(("best of all", "client"), "rank 64 was too much"))
    index, states = RunIndex(), {small: "done", large: "failed"}

    def matching(words: str) -> list[str]:
        query = Query.of(words)
        return [run.name[:3] for run in (small, large) if query.matches(index.text(run), states[run])]

    for words, names in {
        "": ["fox", "por"], "FOX": ["fox"], "flux1-dev": ["fox"], "flux.1": ["fox", "por"], "client": ["por"],
        "rank 16": ["fox"], "rank 64": ["por"], "rank 8": [], "rank=32": ["por"], "network_dim:16": ["fox"],
        "network rank (dim) 16": ["fox"], "rank 32 fox": [], "lr 1": ["por"], "learning_rate=1.0": ["por"],
        "optimizer prodigy": ["por"], "deterministic on": ["por"], "failed": ["por"], "finished": ["fox"],
        "state:done": ["fox"], 'tag:"best of"': ["por"], "tag:fox": [], "#client": ["por"], "note:much": ["por"],
        'fox "too much"': [], '"unclosed': [],
    }.items():  # fmt: skip
        assert matching(words) == names, words

    known = index.text(small)
    assert index.text(small) is known
    write_notes(small, Notes(("client",)))
    assert matching("tag:client") == ["fox", "por"]
    index.keep_only([large])
    assert not index.knows(small) and index.knows(large)
