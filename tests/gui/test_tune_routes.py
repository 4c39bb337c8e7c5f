"""What the Tune panel asks, how a tune is followed, and what is kept of it; none is started here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from backend.config import load
from backend.config.presets import Shelf
from gui import form_routes
from gui.actions import Actions
from gui.jobs import Job
from gui.tune_plot import pareto_plot
from tests.gui.conftest import Page

GIB = 2**30


def row(number: int, name: str, finish: float | None, peak: float | None, **more: Any) -> dict[str, Any]:
    """A row as `launcher.py tune --json` writes it."""
    usual = {"changes": [], "values": {}, "state": "measured", "reason": "", "pareto": False}
    size = None if peak is None else int(peak * GIB)
    return {**usual, "number": number, "name": name, "finish": finish, "peak": size, **more}


CHANGE = {"training.gradient_checkpointing": False, "memory.activation_memory_budget": None}
ROWS = [
    row(0, "present settings", 1200.0, 11.0, pareto=True),
    row(1, "not <compiled>", 1500.0, 12.0),
    row(2, "no checkpointing", 900.0, 20.0, pareto=True, values=CHANGE),
    row(3, "batch 4 x 1", None, None, state="does_not_fit", reason="It needs about 30.0 GB of video memory."),
]
RESULT = {"kind": "tune", "version": 1, "trials": ROWS, "best": 2, "values": CHANGE, "text": "Best.", "notes": []}
RESULT |= {"machine": "a GPU, torch 2.11", "ended": "done"}


def test_a_tune_is_followed_kept_applied_and_saved(page: Page, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[dict[str, Any]] = []

    def start(job: Job, module: str, arguments: list[str], line: Any, end: Any) -> bool:
        started.append({"job": job, "words": arguments, "line": line, "end": end})
        job.state = "running"
        return True

    monkeypatch.setattr(Job, "start", start)
    monkeypatch.setattr(form_routes, "start_problems", lambda config: [])
    assert page.client.get("/tune").json()["result"] is None
    assert page.client.post("/tune", json={"allow": ["all"]}).status_code == 422
    assert page.client.post("/tune", json={"allow": ["precision"], "by_class": True, "probes": 5}).status_code == 200
    (tune,) = started
    assert tune["words"][1:] == ["--json", "--probes", "5", "--allow", "precision", "--by-class"]
    assert Path(tune["words"][0]).is_file() and page.client.post("/tune").status_code == 409
    tune["line"]({"kind": "progress", "text": "Measuring.", "share": 0.5, "probes": 2, "planned": 4, "left": 130.0})
    shown = page.client.get("/tune").json()
    assert (shown["at"], shown["probes"], shown["planned"], shown["left"]) == ("Measuring.", 2, 4, "2 min 10 s")
    tune["line"](RESULT)
    page.client.post("/tune/cancel")  # the best so far stays
    assert tune["end"](0, "") and not Path(tune["words"][0]).exists()
    tune["job"].state = "idle"
    shown = page.client.get("/tune").json()
    assert shown["result"]["best"] == 2 and not shown["other"] and shown["svg"].count("<circle") == 3
    (changed,) = shown["rows"]
    assert (changed["path"], changed["before"], changed["after"]) == ("training.gradient_checkpointing", "on", "off")

    draft = page.client.app.state.draft  # type: ignore[attr-defined]
    kept = json.loads((draft.folder / "tune.json").read_text("utf-8"))
    assert kept["result"]["best"] == 2, "a page that starts again shows it"
    shelf = Shelf(user=tmp_path / "presets")
    actions = Actions(draft, None, shelf)  # type: ignore[arg-type]
    before = dict(draft.now.values)
    actions.save_as({"name": "faster", "change": CHANGE})
    saved = load.load(shelf.user / "faster.toml").config
    assert saved is not None and not saved.training.gradient_checkpointing
    assert draft.now.values == before and draft.now.preset != "faster", "the form stays as it is"
    actions.apply({"change": CHANGE})
    after = page.client.get("/tune").json()
    assert not after["rows"] and not after["other"]
    assert actions.undo({}).reload and draft.now.values == before
    draft.keep(before | {"dataset.resolution": "512"})
    assert page.client.get("/tune").json()["other"], "it was for other settings"


def test_the_picture_shows_each_candidate_that_ran() -> None:
    drawn = pareto_plot(ROWS, 2)
    assert drawn.count("<circle") == 3 and drawn.count('class="point best"') == 1 and "<polyline" in drawn
    assert "not &lt;compiled&gt;: 25 min, 12.0 GB" in drawn and "batch 4" not in drawn
    # the axes open beyond the points, none of which lies on a border
    places = [tuple(map(float, place)) for place in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    assert len(places) == 3 and all(100 < x < 666 and 26 < y < 204 for x, y in places), places
    alike = [row(number, "x", 60.0, 1.0) for number in range(2)]
    assert pareto_plot(alike, 0).count('class="value"') == 1, "a number that would cover another is left out"
    assert pareto_plot(ROWS[:1], 0) == ""
