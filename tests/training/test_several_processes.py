"""Two processes train together: to the bits of one that accumulates two batches, over a kill, a stop and a resume."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from backend.config.schema import Config
from backend.config.toml_io import dump
from backend.training.between_steps import BetweenSteps
from backend.training.requests import Requests
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

STEPS = 6


def settings(base: Path, images: Path, where: Path, processes: int) -> Config:
    """Two batches a step, over the borders of epochs (7 pictures), with all that is drawn or kept besides weights."""
    return config(
        base, images, where,
        network={"network_dropout": 0.3, "module_dropout": 0.1},
        dataset={"caption_dropout_rate": 0.3},
        timesteps={"stratified": True},
        training={"max_train_steps": STEPS, "num_processes": processes, "ema": True,
                  "gradient_accumulation_steps": 2 // processes},
    )  # fmt: skip


def other_process() -> psutil.Process:
    (other,) = [each for each in psutil.Process().children() if "backend.training.ranks" in each.cmdline()]
    return other


def test_two_processes_are_one_that_accumulates(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder.joinpath("picture_7.png").unlink()
    one, two = (settings(tiny_flux, image_folder, tmp_path, processes) for processes in (1, 2))
    straight, code = train_here(one)
    assert code == 0, events(straight, "error")

    killed: list[float] = []
    after_step = BetweenSteps.after_step

    def kill(self: BetweenSteps, ended: range) -> None:
        after_step(self, ended)
        if self.position().step == 2:
            other = other_process()
            other.kill()
            killed.append(time.monotonic())

    monkeypatch.setattr(BetweenSteps, "after_step", kill)
    run, code = train_here(two)
    seconds = time.monotonic() - killed[0]
    (error,) = events(run, "error")
    assert code == 1 and "Process 1" in error["text"] and "log.rank1.txt" in error["text"], error
    assert "The LoRA of step 2 is kept" in error["text"] and seconds < 20, (error, seconds)
    assert run.status().resumable and [row["step"] for row in rows(run)] == [1, 2]
    assert "Process 1 of 2 is ready" in (run.path / "log.rank1.txt").read_text()

    monkeypatch.setattr(BetweenSteps, "after_step", after_step)
    looks: list[int] = []
    monkeypatch.setattr(Requests, "stop", property(lambda self: bool(looks.append(1)) or len(looks) > 2))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    _, code = train_here(two, run, resume=True)
    monkeypatch.undo()
    assert code == 0 and events(run, "stopped")[0]["step"] == 4, events(run, "error")
    assert not psutil.Process().children(recursive=True)

    dump(one, run.config_path, whole=True)
    _, code = train_here(one, run, resume=True)
    assert code == 0 and any("by 2 processes" in each["text"] for each in events(run, "warning"))
    assert same(lora_of(run), lora_of(straight)) and same(state_of(run), state_of(straight))
    for column in ("step", "loss", "loss_smooth", "lr", "grad_norm", "epoch"):
        assert [row[column] for row in rows(run)] == [row[column] for row in rows(straight)], column
