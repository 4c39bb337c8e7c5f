"""What the page polls is what the run's own records say."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.events.kinds import (
    CheckpointEvent,
    CompileStateEvent,
    GraphEvent,
    PhaseEvent,
    RecompileEvent,
    ResumedEvent,
    SampleEvent,
    WarningEvent,
)
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader, MetricsWriter
from backend.runs.samples import sheet_of
from gui import run_view
from gui.run_routes import safetensors_metadata
from tests.gui.conftest import Page, make_run


def live(page: Page, run: Run, **query: object) -> dict:
    answer = page.client.get("/live", params={"run": run.name, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_panel_shows_the_runs_own_records(page: Page) -> None:
    run = make_run(page.runs)
    answer = live(page, run)
    reader = MetricsReader(run)
    assert answer["last"] == reader.last()
    assert answer["series"]["loss"] == reader.range(columns=("loss",))["loss"]
    assert answer["series"]["step"] == list(range(1, 31))
    assert answer["status"]["state"] == "done"
    assert [row["loss"] for row in answer["facts"]["validation"]] == [0.5, 0.2]
    assert answer["facts"]["samples"] == [
        {
            "file": "step_000030_0.png",
            "picture": "step_000030_0.png",
            "step": 30,
            "prompt_index": 0,
            "prompt": "a fox",
        }
    ]
    assert answer["facts"]["checkpoints"][0]["path"] == str(run.checkpoints_dir / "fox.safetensors")


def test_a_clip_is_listed_once_with_its_frames_and_sent_in_the_parts_that_a_browser_asks_for(page: Page) -> None:
    run = make_run(page.runs)
    clip, content = run.samples_dir / "step00000031-0.mp4", bytes(range(256)) * 40
    clip.write_bytes(content)
    sheet_of(clip).write_bytes((run.samples_dir / "step_000030_0.png").read_bytes())
    names = {"file": f"samples/{clip.name}", "sheet": f"samples/{sheet_of(clip).name}"}
    EventWriter(run).write(SampleEvent(step=31, prompt_index=0, prompt="a fox runs", **names))
    *_, shown = live(page, run)["facts"]["samples"]
    assert shown == {
        "file": "step00000031-0.mp4",
        "picture": "step00000031-0.sheet.png",
        "step": 31,
        "prompt_index": 0,
        "prompt": "a fox runs",
    }
    (shelf,) = page.client.get("/library").json()["runs"]
    assert shelf["pictures"] == ["step_000030_0.png", "step00000031-0.sheet.png"]

    query = {"run": run.name, "file": clip.name}
    whole = page.client.get("/image", params=query)
    assert (whole.status_code, whole.headers["content-type"], whole.content) == (200, "video/mp4", content)
    assert whole.headers["accept-ranges"] == "bytes" and whole.headers["x-content-type-options"] == "nosniff"
    part = page.client.get("/image", params=query, headers={"Range": "bytes=1000-1999"})
    assert part.status_code == 206 and part.content == content[1000:2000]
    assert part.headers["content-range"] == f"bytes 1000-1999/{len(content)}"
    beyond = page.client.get("/image", params=query, headers={"Range": f"bytes={len(content)}-"})
    assert beyond.status_code == 416
    sheet_of(clip).unlink()
    assert live(page, run)["facts"]["samples"][-1]["picture"] is None


def test_what_did_not_change_is_not_sent_again(page: Page) -> None:
    run = make_run(page.runs)
    first = live(page, run)
    marks = {"key": first["key"], "seen": first["seen"]}
    again = live(page, run, **marks)
    assert "series" not in again and "facts" not in again
    with MetricsWriter(run, generation=1, start_step=20) as metrics:
        metrics.add(21, loss=0.5)
    EventWriter(run).write(RecompileEvent(reason="caption length went from 128 to 256", block="double", setting="x"))
    later = live(page, run, **marks)
    assert later["series"]["step"] == list(range(1, 22)) and later["last"]["step"] == 21
    assert later["facts"]["recompiles"][0]["reason"] == "caption length went from 128 to 256"


def test_new_files_and_a_new_start_are_seen_at_once(page: Page) -> None:
    run = make_run(page.runs)
    assert live(page, run)["status"]["state"] == "done"
    (run.samples_dir / "later.png").write_bytes(b"picture")
    (run.checkpoints_dir / "later.safetensors").write_bytes(b"weights")
    facts = live(page, run)["facts"]
    assert {sample["file"] for sample in facts["samples"]} == {"step_000030_0.png", "later.png"}
    assert {file["name"] for file in facts["checkpoints"]} == {"fox.safetensors", "later.safetensors"}
    EventWriter(run).write(CheckpointEvent(step=40, file="checkpoints/later.safetensors"))
    steps = {file["name"]: file["step"] for file in live(page, run)["facts"]["checkpoints"]}
    assert steps["later.safetensors"] == 40
    run.prepare_start(["again"])
    assert live(page, run)["status"]["state"] == "starting"


def test_a_long_run_is_thinned_and_keeps_its_extremes(page: Page) -> None:
    run = make_run(page.runs, steps=500)
    series = live(page, run, width=40)["series"]
    assert len(series["step"]) <= 40
    assert max(series["loss"]["max"]) == 1.0
    zoomed = live(page, run, width=40, since=100, until=120)["series"]
    assert zoomed["step"] == list(range(100, 121))


def test_compile_facts_are_folded(page: Page) -> None:
    run = make_run(page.runs)
    events = EventWriter(run)
    events.write(CompileStateEvent(state="compiled", reason=None, planned=4))
    for graph in (1, 2):
        events.write(GraphEvent(graph=graph, block="double", seconds=3.0, cached=False, gradients=True))
    facts = live(page, run)["facts"]["compile"]
    assert (facts["state"], facts["planned"], facts["graphs"], len(facts["made"])) == ("compiled", 4, 2, 2)
    events.write(CompileStateEvent(state="fallback", reason="no C compiler was found", planned=4))
    assert live(page, run)["facts"]["compile"]["reason"] == "no C compiler was found"
    events.write(ResumedEvent(step=10, generation=1))
    assert live(page, run)["facts"]["compile"] == {}


def test_warnings_are_whole_sentences_each_told_once(page: Page) -> None:
    run = make_run(page.runs)
    for _ in range(2):
        EventWriter(run).write(WarningEvent(text="the run ends early", remedy="Set max_train_steps to 240"))
    facts = page.client.get("/live", params={"run": run.name}).json()["facts"]
    assert facts["warnings"] == [{"text": "The run ends early.", "remedy": "Set max_train_steps to 240."}]


def test_runs_are_listed_whoever_made_them(page: Page) -> None:
    assert page.client.get("/runs").json() == {"runs": []}
    names = [make_run(page.runs, name).name for name in ("fox", "hare")]
    (page.runs / "no run").mkdir()
    listed = page.client.get("/runs").json()["runs"]
    assert {run["name"] for run in listed} == set(names)
    assert all(run["state"] == "done" and not run["active"] for run in listed)


def test_the_log_is_read_on_from_where_it_was(page: Page) -> None:
    run = make_run(page.runs)
    first = page.client.get("/log", params={"run": run.name}).json()
    assert first["text"] == "first line\nsecond line\n"
    with run.log_path.open("a", encoding="utf-8") as log:
        log.write("<b>third</b> ${1+1} {{this}}\nhalf")
    rest = page.client.get("/log", params={"run": run.name, "offset": first["offset"]}).json()
    assert rest["text"] == "<b>third</b> ${1+1} {{this}}\n"
    assert not rest["reset"]


def test_a_run_that_is_not_at_work_can_be_asked_nothing(page: Page) -> None:
    run = make_run(page.runs)
    for what in ("stop", "save", "sample"):
        answer = page.client.post("/control", json={"run": run.name, "what": what})
        assert answer.status_code == 409 and "not running" in answer.json()["detail"]
    assert Control(run).pending() == set()
    assert page.client.post("/control", json={"run": "nothing", "what": "stop"}).status_code == 404


def test_a_deleted_run_comes_back_whole(page: Page) -> None:
    run = make_run(page.runs)
    token = page.client.post("/delete", json={"run": run.name}).json()["token"]
    assert page.client.get("/runs").json() == {"runs": []}
    assert not run.path.exists()
    assert page.client.post("/restore", json={"token": token}).json() == {"run": run.name}
    assert live(page, run)["last"] == MetricsReader(run).last()
    assert page.client.post("/restore", json={"token": token}).status_code == 409
    assert page.client.post("/restore", json={"token": "../../x"}).status_code == 409


def test_the_library_shows_files_and_pictures(page: Page) -> None:
    run = make_run(page.runs)
    (shelf,) = page.client.get("/library").json()["runs"]
    assert shelf["pictures"] == ["step_000030_0.png"]
    assert [file["name"] for file in shelf["files"]] == ["fox.safetensors"]
    assert (shelf["path"], shelf["live"], shelf["tone"]) == (str(run.path), False, "good")


def test_a_lora_tells_what_it_says_about_itself(page: Page) -> None:
    run = make_run(page.runs)
    tensor = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    header = json.dumps({"__metadata__": {"ss_network_dim": "16"}, "x": tensor}).encode()
    (run.checkpoints_dir / "fox.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0" * 64)
    answer = page.client.get("/lora-metadata", params={"run": run.name, "file": "fox.safetensors"})
    assert answer.json() == {"metadata": {"ss_network_dim": "16"}}


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 8, struct.pack("<Q", 5) + b"{oops"])
def test_a_broken_lora_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.safetensors"):
        safetensors_metadata(path)


def test_of_a_growing_run_only_what_is_new_is_sent(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "_STANDS_S", 0.0)
    monkeypatch.setenv("MONOTILE_RUN", "")
    run = Run.create_empty(page.runs, "fox")
    run.attach()
    with MetricsWriter(run) as metrics:
        for step in range(1, 5001):
            metrics.add(step, loss=1.0)
        metrics.flush()
        first = live(page, run, width=100, log_offset=0)
        assert "from" not in first["series"] and first["log"] == {"text": "", "offset": 0, "reset": True}
        metrics.add(5001, loss=9.0)
        metrics.flush()
        run.log_path.write_text("a line\n", encoding="utf-8")
        EventWriter(run).write(PhaseEvent(phase="train", done=5001))
        later = live(page, run, width=100, log_offset=0, key=first["key"], seen=first["seen"])
    assert len(later["series"]["step"]) == 1 and later["series"]["loss"]["max"] == [9.0]
    assert later["series"]["from"] == 5001 // later["series"]["size"] * later["series"]["size"]
    assert later["log"]["text"] == "a line\n" and "facts" not in later
    assert "series" not in live(page, run, width=100, key=later["key"])
