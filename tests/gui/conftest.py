"""A page of its own for each test: drafts, presets and runs below a temporary folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from backend.config.load import parse
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CheckpointEvent, SampleEvent, StepTotalEvent, ValidationEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter

ADDRESS = "http://127.0.0.1:7860"


@dataclass
class Page:
    """The page's application, and the folder of runs that its form names."""

    client: TestClient
    runs: Path


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The whole application, built once: drawing the form takes most of a second."""
    from gui.app import Home, make_app

    return make_app(Home.at(tmp_path_factory.mktemp("page")))


@pytest.fixture
def page(application: FastAPI, tmp_path: Path) -> Page:
    """The application, asked without a network, with a fresh form and an empty folder of runs."""
    from gui import form

    folder = tmp_path / "runs"
    folder.mkdir()
    application.state.draft.keep(form.defaults() | {"saving.output_dir": str(folder)})
    # No context manager: the start-up work of the server belongs to tests of its own.
    return Page(TestClient(application, base_url=ADDRESS), folder)


def make_run(root: Path, name: str = "fox", steps: int = 30) -> Run:
    """A finished run with real records, as the trainer writes them."""
    root.mkdir(parents=True, exist_ok=True)
    config = parse({"saving": {"output_dir": str(root), "output_name": name}}).config
    assert config is not None
    run = Run.create(config)
    events = EventWriter(run)
    events.write(StepTotalEvent(total=steps))
    with MetricsWriter(run) as metrics:
        for step in range(1, steps + 1):
            metrics.add(step, loss=1.0 / step, loss_smooth=1.1 / step, ram=1000 + step, graphs=4, recompiles=0)
    for step in (0, steps):
        events.write(ValidationEvent(step=step, set="held out", sigma_losses={"0.1": 0.5}, loss=0.5 - step / 100))
    (run.samples_dir / "step_000030_0.png").write_bytes(b"\x89PNG picture")
    events.write(SampleEvent(step=steps, prompt_index=0, file="samples/step_000030_0.png", prompt="a fox"))
    (run.checkpoints_dir / f"{name}.safetensors").write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    events.write(CheckpointEvent(step=steps, file=f"checkpoints/{name}.safetensors"))
    run.log_path.write_text("first line\nsecond line\n", encoding="utf-8")
    run.finish("done", step=steps)
    return run
