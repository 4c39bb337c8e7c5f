"""A run that is trained further, compared with one that had the length from the start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backend.base.errors import Refused
from backend.config.schema import Config
from backend.plan.further import Wish, plan_further
from backend.runs.folder import Run
from backend.training import resume
from backend.training.command_line import open_run, read_arguments
from backend.training.process import run_trainer
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here


def settings(base: Path, images: Path, where: Path, steps: int, warmup: float) -> Config:
    return config(
        base, images, where,
        network={"network_dropout": 0.3}, training={"max_train_steps": steps, "ema": True},
        optimizer={"learning_rate": 0.01, "lr_scheduler": "constant", "lr_warmup": warmup},
    )  # fmt: skip


def further(run: Run, wish: Wish) -> None:
    """As the page starts it: the changes are words of the command, and the run's own once nothing refuses them."""
    changes = [f"--{name}={value}" for name, value in plan_further(run, wish).overrides.items()]
    opened = open_run(read_arguments(["--run", str(run.path), "--resume", *changes]))
    assert run_trainer(opened.run, resume=opened.resume, changed=opened.changed) == 0, events(run, "error")


def test_a_longer_run_at_a_constant_rate_is_one_that_was_long_from_the_start(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, code = train_here(settings(tiny_flux, image_folder, tmp_path, 5, 1))
    assert code == 0
    # a warm-up of one step, as a share of three
    run, _ = train_here(settings(tiny_flux, image_folder, tmp_path, 3, 0.4))
    first = (run.checkpoints_dir / "tiny.safetensors").read_bytes()
    with pytest.raises(Refused, match="3 steps already"):
        plan_further(run, Wish(steps=3))
    assert resume.main([str(run.path), "--steps", "5", "--schedule", "constant", "--dry-run"]) == 0
    message = capsys.readouterr().err
    assert "after step 3 of 5" in message and "equals a run that had this length" in message
    assert len(rows(run)) == 3
    # the warm-up does not grow with the run, so that none begins again; and only what is equal is called equal
    longer = plan_further(run, Wish(steps=500))
    assert longer.overrides["optimizer.lr_warmup"] == "1" and longer.rate(3) == 0.01
    assert "equals" not in " ".join(plan_further(run, Wish(steps=5, learning_rate=0.02)).sentences())
    further(run, Wish(steps=5, schedule="constant"))
    assert same(lora_of(run), lora_of(straight)) and same(state_of(run)["optimizer"], state_of(straight)["optimizer"])
    assert [row["loss"] for row in rows(run)] == [row["loss"] for row in rows(straight)]
    assert (run.checkpoints_dir / "tiny-step00000003-final.safetensors").read_bytes() == first
    assert "max_train_steps = 5" in run.config_path.read_text()

    # without its state a run continues in a new one, from its file
    shutil.rmtree(run.state_dir)
    assert resume.main([str(run.path), "--steps", "9"]) == 2
    message = capsys.readouterr().err
    assert "--network_weights" in message and "tiny.safetensors" in message and "momentum" in message
