"""What the Library tab asks of LoRA files: which file is meant, and what is refused before a process is started."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from backend.config import load, toml_io
from backend.config.schema import with_values
from tests.gui.conftest import Page, make_run


def ask(page: Page, **question: Any) -> tuple[int, Any]:
    answer = page.client.post("/lora", json={"what": "inspect", **question})
    return answer.status_code, answer.json()


def test_a_file_that_is_not_there_is_refused(page: Page) -> None:
    run = make_run(page.runs)
    assert ask(page, run="none", file="fox.safetensors")[0] == 404
    assert ask(page, run=run.name, file="../fox.safetensors")[0] == 404
    assert ask(page, file="  ")[0] == 422
    assert ask(page, what="delete", file="x")[0] == 422


def test_what_is_wrong_with_a_file_is_the_answer(page: Page, tmp_path: Path) -> None:
    """The run's own file is empty of tensors: the process says so, and a second question waits for it."""
    run = make_run(page.runs)
    code, reply = ask(page, run=run.name, file="fox.safetensors")
    assert code == 200, reply
    assert ask(page, file=f'"{tmp_path / "x.safetensors"}"')[0] == 409
    until = time.monotonic() + 120
    while (state := page.client.get("/lora").json())["state"] == "running" and time.monotonic() < until:
        time.sleep(0.1)
    assert state["number"] == reply["number"] and state["state"] == "failed"
    assert "fox.safetensors holds no LoRA" in state["error"] and state["result"] is None


def test_of_a_whole_model_nothing_is_asked_that_takes_a_lora(page: Page) -> None:
    run = make_run(page.runs)
    config = load.load(run.config_path).config
    assert config is not None
    toml_io.dump(with_values(config, {"training.kind": "full"}), run.config_path, whole=True)
    assert ask(page, run=run.name, file="fox.safetensors")[0] == 409
    assert page.client.post("/publish", json={"run": run.name, "file": "fox.safetensors"}).status_code == 409
    assert page.client.get("/preview/sources").json()["runs"] == []
    drawing = {"run": run.name, "files": ["fox.safetensors"], "prompts": ["a fox"]}
    refused = page.client.post("/preview/draw", json=drawing)
    assert refused.status_code == 422 and "whole models" in refused.json()["detail"]
    (listed,) = page.client.get("/library").json()["runs"]
    assert [file["model"] for file in listed["files"]] == [True]
