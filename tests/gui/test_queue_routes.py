"""What the Queue tab asks of the server: the list, its buttons, and a refusal in words for each that can't be."""

from __future__ import annotations

from typing import Any

from backend.config.load import parse
from backend.queue.folder import QueueFolder
from tests.gui.conftest import Page


def test_the_list_its_buttons_and_what_is_refused(page: Page, application: Any) -> None:
    folder = QueueFolder.of_page(application.state.draft.folder)
    config = parse({"saving": {"output_dir": str(page.runs), "output_name": "fox"}}).config
    assert config is not None
    first, second = folder.add(config), folder.add(config, "1")
    listed = page.client.get("/queue").json()
    assert not listed["on"] and [entry["gpu"] for entry in listed["entries"]] == [None, "1"]
    assert [entry["state"] for entry in listed["entries"]] == ["waiting", "waiting"]

    def press(what: str, entry: str = first.id, **more: str) -> tuple[int, str]:
        reply = page.client.post("/queue/entry", json={"entry": entry, "what": what, **more})
        return reply.status_code, reply.json().get("detail", "")

    assert press("down")[0] == 200 and folder.read().entries[1].id == first.id
    assert press("gpu", gpu="0")[0] == 200 and folder.read().of(first.id).gpu == "0"
    assert press("gpu", gpu="x") == (409, "'x' is no number of a GPU. Take one that nvidia-smi lists, such as 0.")
    assert press("skip")[0] == 200 and press("now")[0] == 409
    assert press("fly")[0] == 422 and press("skip", "../../x")[0] == 404
    token = page.client.post("/queue/remove", json={"entry": second.id}).json()["token"]
    assert page.client.post("/queue/restore", json={"token": token}).status_code == 200
    assert page.client.post("/queue/restore", json={"token": token}).status_code == 404
    assert [entry.id for entry in folder.read().entries] == [second.id, first.id]
    assert page.client.post("/queue/set", json={"continue_ended": True}).status_code == 200
    assert folder.read().continue_ended and not folder.read().on
    assert page.client.post("/queue/clear").status_code == 200
    assert [entry.id for entry in folder.read().entries] == [second.id], "a skipped one is off the list"
    assert page.client.post("/queue/remove", json={"entry": second.id}).status_code == 200
