"""Deleting a run: what a person keeps beside their runs is never touched, whatever it is called."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from backend.runs import recovery
from backend.runs.errors import RunError
from backend.runs.folder import Run
from gui import run_bin
from gui.run_store import RunStore
from tests.gui.conftest import ADDRESS, Page, make_run

WEEKS_AGO = time.time() - 15 * 24 * 3600


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_the_start_of_the_page_leaves_a_persons_files_alone(application: FastAPI, page: Page, tmp_path: Path) -> None:
    """Names as old bins had them, a time that is no number to int(), marks that are none, links, foreign records."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "photos").mkdir(parents=True)
    for name in (".bin/7-zip", ".bin/²-x", ".bin/1700000000-mine", f"{run_bin.FOLDER}/1-mine", f"{run_bin.FOLDER}/odd"):
        (page.runs / name).mkdir(parents=True)
        (page.runs / name / "kept.txt").write_text("mine")
    (page.runs / run_bin.FOLDER / "odd" / run_bin.MARK).write_text('{"deleted": "long ago", "name": 7}')
    os.symlink(elsewhere, page.runs / run_bin.FOLDER / "link")
    (elsewhere / run_bin.MARK).write_text(json.dumps({"deleted": WEEKS_AGO, "name": "x"}))
    for name, record in (("build", {"state": 0, "pid": 3}), ("other", {"v": "2.1", "name": "a"}), ("list", [1])):
        (page.runs / name / "control").mkdir(parents=True)
        (page.runs / name / "run.json").write_text(json.dumps(record))
        (page.runs / name / "control" / "stop").write_text("mine")
        (page.runs / name / f".file.{2**22 + 5}-0123abcd.part").write_text("mine")
    before = everything(page.runs), everything(elsewhere)
    with TestClient(application, base_url=ADDRESS) as client:
        assert {run["name"] for run in client.get("/runs").json()["runs"]} >= {"build", "other", "list"}
    recovery.reconcile(page.runs)
    assert (everything(page.runs), everything(elsewhere)) == before


def test_a_deleted_run_comes_back_whole_or_goes_after_a_week(page: Page, tmp_path: Path) -> None:
    run = make_run(page.runs, name="fox")
    before = everything(run.path)
    token = page.client.post("/delete", json={"run": run.name}).json()["token"]
    assert not run.path.exists()
    assert page.client.post("/restore", json={"token": token}).json() == {"run": run.name}
    assert everything(run.path) == before

    token = page.client.post("/delete", json={"run": run.name}).json()["token"]
    store = RunStore(lambda: str(page.runs), tmp_path / "places.json")
    store.empty_bins()
    held = page.runs / run_bin.FOLDER / token
    assert held.is_dir()
    (held / run_bin.MARK).write_text(json.dumps({"name": run.name, "deleted": WEEKS_AGO}))
    store.empty_bins()
    assert not held.exists()


def test_a_folder_without_our_record_is_not_deleted(page: Page) -> None:
    folder = page.runs / "mine"
    folder.mkdir()
    (folder / "run.json").write_text('{"started": "z", "v": 1}')
    answer = page.client.post("/delete", json={"run": "mine"})
    assert answer.status_code == 409 and "by hand" in answer.json()["detail"]
    assert sorted(path.name for path in folder.iterdir()) == ["run.json"]


def test_a_mark_leads_nowhere_else(page: Page) -> None:
    held = page.runs / run_bin.FOLDER / "token"
    held.mkdir(parents=True)
    (held / run_bin.MARK).write_text(json.dumps({"name": "../../out", "deleted": 1.0}))
    assert run_bin.take_back(page.runs, "token") == "out" and (page.runs / "out").is_dir()
    assert run_bin.take_back(page.runs, "..") is None


def test_a_run_at_work_is_not_deleted(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOTILE_RUN", "")
    run = Run.create_empty(page.runs, "busy")
    run.prepare_start(["x"])
    with pytest.raises(RunError, match="still running"):
        run_bin.put(run)
