"""The panel "Finish time": what it is answered."""

from __future__ import annotations

from backend.plan.finish.pace import Pace, keep_pace
from gui import form
from tests.gui.conftest import Page, make_run

PACE = Pace(measured=0.0, before=20.0, warm_up=10.0, step=0.5, steps_per_epoch=50.0, after=2.0)


def test_the_panel_is_answered_before_and_after_a_probe(page: Page, application: object) -> None:
    answer = page.client.get("/finish").json()
    expected = {"text": "", "cost": "", "state": "idle", "failure": "", "at": "", "share": 0.0}
    assert answer == expected, "the fields of FinishState in assets/js/plan.d.ts"
    config = form.read(application.state.draft.now.values).config  # type: ignore[attr-defined]
    assert config is not None
    keep_pace(config, PACE)
    answer = page.client.get("/finish", params={"per_hour": 2}).json()
    assert "1,600 steps of 0.5 s" in answer["text"] and "at 2 an hour" in answer["cost"]
    assert page.client.get("/finish", params={"per_hour": -1}).status_code == 422
    # a data set is missing: nothing is started
    assert page.client.post("/finish", json={}).status_code == 422


def test_a_run_without_a_probe_has_nothing_to_compare(page: Page) -> None:
    run = make_run(page.runs)
    assert page.client.get("/finish/run", params={"run": run.name}).json() == {"text": ""}
    assert page.client.get("/finish/run", params={"run": "../x"}).status_code == 404
