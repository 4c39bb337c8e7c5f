"""The Library tab: what a search finds, tags and notes, runs compared, the report, and training further."""

from __future__ import annotations

import shutil
import time

import pytest
from PIL import Image

from backend.base.paths import BUILTIN_PRESETS
from backend.config.load import load
from backend.runs import supervise
from backend.runs.events import EventWriter
from backend.runs.events.compile_kinds import GraphEvent
from backend.runs.events.kinds import MemoryPeakEvent, PlanEvent, StepTotalEvent, ValidationEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.runs.notes import Notes, read_notes
from backend.runs.state_folder import POSITION, keep_state
from backend.runs.summary import curve
from tests.gui.conftest import Page, make_run


def library(page: Page, **query: object) -> dict:
    answer = page.client.get("/library", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_search_answers_with_what_has_its_words_and_is_short_where_nothing_changed(page: Page) -> None:
    fox, _ = make_run(page.runs, "fox"), make_run(page.runs, "owl")
    first = library(page)
    assert (first["total"], first["matching"], first["unread"], first["tags"]) == (2, 2, 0, [])
    assert library(page, seen=first["mark"]) == {"mark": first["mark"]}
    before = {"tags": [], "notes": ""}
    written = {"run": fox.name, "tags": ["#Night "], "notes": "fine", "before": before}
    assert page.client.post("/notes", json=written).json() == {"tags": ["Night"], "notes": "fine"}
    assert read_notes(fox) == Notes(("Night",), "fine")
    answer = page.client.post("/notes", json={**written, "notes": "other"})
    assert answer.status_code == 409 and "changed elsewhere" in answer.json()["detail"]
    (card,) = library(page, words="tag:night finished")["runs"]
    assert (card["name"], card["tags"], card["notes"]) == (fox.name, ["Night"], "fine")
    assert library(page, most=1)["matching"] == 2 and len(library(page, most=1)["runs"]) == 1
    assert library(page)["tags"] == [{"name": "Night", "count": 1}]
    assert page.client.post("/notes", json={**written, "run": "../x"}).status_code == 404


def test_runs_are_compared_by_their_own_records(page: Page) -> None:
    fox, owl = make_run(page.runs, "fox", steps=30), make_run(page.runs, "owl", steps=20)
    text = owl.config_path.read_text()
    owl.config_path.write_text(text.replace("network_dim = 16", "network_dim = 32"))
    events = EventWriter(owl)
    events.write(GraphEvent(graph=1, seconds=2.5))
    events.write(GraphEvent(graph=2, seconds=1.5))
    events.write(MemoryPeakEvent(vram_peak=3 * 2**30))
    # of a training set, which is no held-out loss
    events.write(ValidationEvent(step=20, set="training", loss=0.01, trained=True))
    # a resume a day later: the time between does not count
    with MetricsWriter(owl, generation=1, start_step=20) as metrics:
        for step in (21, 22):
            metrics.add(step, loss=0.5, s_per_step=3.0)
    assert curve(owl).seconds[20] == pytest.approx(curve(owl).seconds[19] + 3.0)

    answer = page.client.get("/compare", params={"run": [fox.name, owl.name]}).json()
    assert [run["name"] for run in answer["runs"]] == [fox.name, owl.name]
    assert answer["runs"][0]["steps"] == list(range(1, 31))
    assert answer["runs"][0]["losses"] == pytest.approx([1.0 / step for step in range(1, 31)])
    assert answer["runs"][0]["held_out"]["losses"] == [0.5, 0.2]
    assert answer["runs"][1]["held_out"]["steps"] == [0, 20]
    results = {row["label"]: row for row in answer["results"]}
    assert results["Best held-out loss"]["values"] == ["0.20000 at step 30", "0.30000 at step 20"]
    assert results["Best held-out loss"]["best"] == 0
    assert results["Compile seconds"]["values"] == ["", "4.0 s"] and results["Recompiles"]["values"] == ["", "0"]
    assert results["Peak GPU memory"]["values"] == ["", "3.00 GB"]
    settings = {row["path"]: row["values"] for row in answer["settings"]}
    assert settings == {"network.network_dim": ["16", "32"], "saving.output_name": ["fox", "owl"]}
    assert page.client.get("/compare", params={"run": [fox.name]}).status_code == 422
    assert page.client.get("/compare", params={"run": [fox.name, "none"]}).status_code == 404


def test_a_run_without_a_state_says_what_a_new_one_lacks(page: Page) -> None:
    run = make_run(page.runs)
    answer = page.client.get("/further", params={"run": run.name}).json()
    assert answer["changes"] == {"network.network_weights": str(run.checkpoints()[-1].path)}
    assert any("momentum" in text for text in answer["lost"])
    refused = page.client.post("/further", json={"run": run.name, "steps": 99})
    assert refused.status_code == 422 and "no saved state" in refused.json()["detail"]
    shutil.rmtree(run.checkpoints_dir)
    answer = page.client.get("/further", params={"run": run.name})
    assert answer.status_code == 422 and "neither a saved state nor a file" in answer.json()["detail"]


def test_what_follows_is_shown_before_the_start(page: Page) -> None:
    demo = load(BUILTIN_PRESETS / "demo.toml").config
    assert demo is not None
    run = Run.create(demo, root=page.runs)
    total = demo.training.max_train_steps or 0
    events = EventWriter(run)
    events.write(StepTotalEvent(total=total))
    events.write(PlanEvent(steps={"batches_per_epoch": 100, "accumulation": 2, "processes": 2}))
    keep_state(run.state_dir, f"step-{total:08d}", lambda where: (where / POSITION).write_text("{}"))
    run.finish("done", step=total)
    standing = page.client.get("/further", params={"run": run.name}).json()
    assert (standing["state"], standing["done"], standing["steps_per_epoch"]) == (True, total, 25.0)

    def plan(**asked: object) -> tuple[int, dict]:
        answer = page.client.post("/further/plan", json={"run": run.name, **asked})
        return answer.status_code, answer.json()

    code, shown = plan(steps=total * 2, schedule="constant", learning_rate="0.0123")
    assert (code, shown["total"]) == (200, total * 2) and "0.0123 from here" in " ".join(shown["sentences"])
    assert "<polyline" in shown["svg"] and f"continues after step {total:,}" in shown["svg"]
    assert plan(epochs=1000)[1]["total"] == 25_000
    wrong: list[tuple[dict[str, object], str]] = [({"steps": total}, "already"), ({}, "not given")]
    wrong += [({"steps": 9, "epochs": 9}, "given twice"), ({"steps": 2 * total, "learning_rate": "0,1"}, "no number")]
    for asked, words in wrong:
        code, refused = plan(**asked)
        assert code == 422 and words in refused["detail"]
    assert load(run.config_path).config == demo


def test_the_trainer_gets_the_changes_and_a_refused_one_leaves_the_settings(page: Page) -> None:
    run = make_run(page.runs)
    before = run.config_path.read_bytes()
    supervise.start(None, run, resume=True, changes={"training.max_train_steps": "40", "training.seed": "-1"})
    assert "--training.max_train_steps=40" in run.record()["command"]
    deadline = time.monotonic() + 120
    while run.status().state != "failed":
        assert time.monotonic() < deadline, run.log_path.read_text()
        time.sleep(0.1)
    assert "seed" in run.log_path.read_text() and run.config_path.read_bytes() == before


def test_the_report_is_one_file_that_names_no_place_of_this_machine(page: Page) -> None:
    run = make_run(page.runs)
    Image.new("RGB", (900, 600), "teal").save(run.samples_dir / "step_000030_0.png")
    notes = {"tags": ["night"], "notes": f"kept in {run.path} <b>"}
    page.client.post("/notes", json={"run": run.name, **notes, "before": {"tags": [], "notes": ""}})
    answer = page.client.get("/report", params={"run": run.name})
    text = answer.text
    assert answer.status_code == 200 and "script" not in text and "default-src 'none'" in answer.headers[
        "content-security-policy"]  # fmt: skip
    assert str(page.runs) not in text and "&lt;b&gt;" in text and text.count("data:image/jpeg;base64,") == 1
    (digest,) = {hash_of(file.path) for file in run.checkpoints()}
    for words in ("night", "a fox", "Training loss", "0.20000 at step 30", digest, "prefers-color-scheme: dark"):
        assert words in text, words
    assert not [part for part in text.split('"') if part.startswith(("http:", "https:")) and "w3.org" not in part]
    assert page.client.get("/report", params={"run": "none"}).status_code == 404


def hash_of(path: object) -> str:
    import hashlib
    from pathlib import Path

    return hashlib.sha256(Path(str(path)).read_bytes()).hexdigest()


def test_a_card_of_a_run_that_ended_earlier_says_what_its_record_says(page: Page) -> None:
    run = Run(make_run(page.runs).path)
    (brief,) = page.client.get("/runs").json()["runs"]
    assert (brief["name"], brief["state"], brief["active"], brief["step"]) == (run.name, "done", False, 30)
    run.prepare_start(["again"])
    (brief,) = page.client.get("/runs").json()["runs"]
    assert (brief["state"], brief["active"]) == ("starting", True)
