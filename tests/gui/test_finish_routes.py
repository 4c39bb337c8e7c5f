"""What the Finish time panel asks, and how a probe is followed; none is started here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.base.problems import Problem
from gui import form_routes
from gui.jobs import Job
from tests.gui.conftest import Page, make_run


def test_a_probe_is_followed_to_its_end(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[dict[str, Any]] = []

    def start(job: Job, module: str, arguments: list[str], line: Any, end: Any) -> bool:
        probes.append({"job": job, "config": Path(arguments[0]), "line": line, "end": end})
        job.state = "running"
        return True

    monkeypatch.setattr(Job, "start", start)
    monkeypatch.setattr(form_routes, "start_problems", lambda config: [])
    before = page.client.get("/finish", params={"per_hour": 2}).json()
    assert before == {"text": "", "cost": "", "state": "idle", "failure": "", "at": "", "share": 0.0}
    assert page.client.get("/finish", params={"per_hour": -1}).status_code == 422
    assert page.client.post("/finish").status_code == 200
    (probe,) = probes
    assert probe["config"].is_file() and page.client.get("/finish").json()["at"] == "Starting."
    probe["line"]({"kind": "progress", "text": "Measuring. Training", "share": 0.5})
    # a second one neither starts nor hides how far the first is
    assert page.client.post("/finish").status_code == 409 and len(probes) == 1
    shown = page.client.get("/finish").json()
    assert (shown["at"], shown["share"], shown["state"]) == ("Measuring. Training", 0.5, "running")
    probe["line"]({"kind": "problems", "problems": [{"text": "No GPU memory.", "remedy": "Lower the batch size."}]})
    assert not probe["end"](1, "a traceback")
    probe["job"].state = "failed"
    assert page.client.get("/finish").json()["failure"] == "No GPU memory. Lower the batch size."
    assert not probe["config"].exists()
    probe["job"].state = "idle"


def test_what_can_not_be_measured_is_said(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("model.base_model", None, "No base model is chosen", "Choose one.")
    monkeypatch.setattr(form_routes, "start_problems", lambda config: [problem])
    reply = page.client.post("/finish")
    assert reply.status_code == 422 and "No base model is chosen" in json.dumps(reply.json())
    run = make_run(page.runs)
    assert page.client.get("/finish/run", params={"run": run.name}).json() == {"text": ""}
    assert page.client.get("/finish/run", params={"run": "nobody"}).status_code == 404
