"""The routes of the finish time: what is known of the form, and what can't be measured."""

from __future__ import annotations

from fastapi import FastAPI

from backend.plan.finish.pace import Pace, keep_pace
from gui import form
from tests.gui.conftest import Page

PACE = Pace(measured=1.0, before=20.0, warm_up=10.0, step=0.5, steps_per_epoch=50.0, after=2.0, save=4.0)


def test_the_finish_time_of_the_form_is_shown_with_its_cost(page: Page, application: FastAPI) -> None:
    answer = page.client.get("/finish").json()
    assert (answer["text"], answer["cost"], answer["state"], answer["at"]) == ("", "", "idle", "")
    config = form.read(application.state.draft.now.values).partial
    assert config is not None
    keep_pace(config, PACE)
    answer = page.client.get("/finish", params={"per_hour": 2}).json()
    assert "1,600 steps of 0.5 s" in answer["text"] and "at 2 an hour" in answer["cost"]
    assert page.client.get("/finish", params={"per_hour": -1}).status_code == 422


def test_what_can_not_be_trained_is_not_measured(page: Page) -> None:
    refused = page.client.post("/finish", json={})
    assert refused.status_code == 422 and "base model" in refused.json()["detail"]
    assert page.client.post("/finish/cancel", json={}).status_code == 200
    assert page.client.get("/finish/run", params={"run": "nothing"}).status_code == 404
