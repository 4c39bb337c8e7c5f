"""A run that was stopped or killed and then resumed ends with the bytes of one that ran through."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import pytest

from backend.config.schema import Config
from backend.config.toml_io import dump
from backend.plan.further import Wish, plan_further
from backend.runs.control import Control
from backend.runs.folder import Run
from backend.training.between_steps import BetweenSteps
from backend.training.requests import Requests
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, lora_of, rows, same, start, state_of, train_here

STEPS = 8


def settings(base: Path, images: Path, where: Path, **saving: object) -> Config:
    """Accumulation over epoch borders (8 pictures, 3 batches a step), dropout of LoRA and captions, stratified levels,
    a schedule, a running mean."""
    return config(
        base, images, where,
        network={"network_dim": 4, "network_alpha": 2.0, "network_dropout": 0.3, "rank_dropout": 0.2,
                 "module_dropout": 0.1},
        dataset={"caption_dropout_rate": 0.3},
        timesteps={"stratified": True},
        optimizer={"lr_warmup": 0.15},
        training={"max_train_steps": STEPS, "gradient_accumulation_steps": 3, "ema": True},
        saving=saving,
    )  # fmt: skip


def assert_equal_to_straight(run: Run, straight: Run) -> None:
    assert same(lora_of(run), lora_of(straight))
    assert same(state_of(run), state_of(straight))
    assert [row["step"] for row in rows(run)] == list(range(1, STEPS + 1))
    for column in ("loss", "loss_smooth", "lr", "grad_norm", "epoch"):
        assert [row[column] for row in rows(run)] == [row[column] for row in rows(straight)], column


@pytest.fixture(scope="module")
def straight(tiny_flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that went through; nobody changes it."""
    where = tmp_path_factory.mktemp("straight")
    run, code = train_here(settings(tiny_flux, draw_pictures(where / "images"), where))
    assert code == 0, events(run, "error")
    # the schedule counts steps, not batches: one of warm-up, then seven of a cosine
    falling = [0.005 * (1 + math.cos(math.pi * step / 7)) for step in range(7)]
    assert [row["lr"] for row in rows(run)] == pytest.approx([0.0, *falling])
    return run


def test_stopped_in_the_middle_of_a_step(
    straight: Run, tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13 batches end inside a step and inside the second epoch. The next test goes on from the end of a step."""
    batches, looks = 13, []

    def stop(self: Requests) -> bool:
        looks.append(1)
        return len(looks) > batches

    monkeypatch.setattr(Requests, "stop", property(stop))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path))
    monkeypatch.undo()
    assert code == 0 and run.status().state == "stopped", events(run, "error")
    assert events(run, "stopped")[0]["step"] == batches // 3 == run.status().step
    assert (run.checkpoints_dir / f"tiny-step{batches // 3:08d}.safetensors").is_file()
    assert train_here(settings(tiny_flux, image_folder, tmp_path), run, resume=True)[1] == 0, events(run, "error")
    assert events(run, "resumed")[0] == {**events(run, "resumed")[0], "step": batches // 3, "generation": 1}
    assert [(each["route"], each["how"]) for each in events(run, "attention")] == [("sdpa", "usual"), ("sdpa", "kept")]
    assert run.record()["attention"] == "sdpa"
    assert_equal_to_straight(run, straight)


@pytest.mark.slow
def test_killed_in_the_middle_of_an_epoch(straight: Run, tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    run = Run.create(settings(tiny_flux, image_folder, tmp_path, save_every_n_steps=1))
    process = start(run)
    deadline = time.monotonic() + 600
    while not any(event["step"] >= 2 for event in events(run, "state")):
        assert process.poll() is None and time.monotonic() < deadline, run.log_path.read_text()[-3000:]
        time.sleep(0.005)
    process.kill()
    process.wait()
    before = run.status()
    assert before.state == "dead" and before.resumable and 2 <= before.state_step < STEPS
    files = {path.name: path.read_bytes() for path in run.checkpoints_dir.iterdir()}
    # Another process than the one that was killed.
    assert train_here(settings(tiny_flux, image_folder, tmp_path, save_every_n_steps=1), run, resume=True)[1] == 0
    assert_equal_to_straight(run, straight)
    assert all((run.checkpoints_dir / name).read_bytes() == data for name, data in files.items() if name[0] != ".")


def test_a_finished_run_that_is_extended_keeps_the_older_lora_under_another_name(
    straight: Run, tiny_flux: Path, tmp_path: Path
) -> None:
    run = Run(shutil.copytree(straight.path, tmp_path / straight.name))
    first = (run.checkpoints_dir / "tiny.safetensors").read_bytes()
    cfg = config(tiny_flux, tmp_path, tmp_path)
    _, code = train_here(cfg, run, resume=True)
    assert code == 0 and run.status().step == STEPS
    assert [path.name for path in run.checkpoints_dir.iterdir()] == ["tiny.safetensors"]
    (warning,) = [event for event in events(run, "warning") if "Nothing was trained" in event["text"]]
    assert f"{STEPS} steps already" in warning["text"] and "--steps N" in warning["remedy"]
    text = run.config_path.read_text().replace(f"max_train_steps = {STEPS}", f"max_train_steps = {STEPS + 2}")
    run.config_path.write_text(text)
    _, code = train_here(cfg, run, resume=True)
    assert code == 0 and run.status().step == STEPS + 2
    older = f"tiny-step{STEPS:08d}-final.safetensors"
    assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == sorted([older, "tiny.safetensors"])
    assert (run.checkpoints_dir / older).read_bytes() == first and not same(lora_of(run, older), lora_of(run))
    assert {path.path.name: path.step for path in run.checkpoints()} == {older: STEPS, "tiny.safetensors": STEPS + 2}
    assert events(run, "done")[-1]["lora"].endswith("/tiny.safetensors")
    assert len([event for event in events(run, "warning") if "Nothing was trained" in event["text"]]) == 1


def test_settings_changed_before_a_resume_hold_from_its_first_step(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """A rate, a decay and a later end; then a caption, and a batch size with fewer batches an epoch than are done."""
    changed = {"learning_rate": 0.002, "lr_scheduler": "cosine", "lr_warmup": 0.0, "weight_decay": 0.5}
    cfg = config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 3}, optimizer={
        "learning_rate": 0.01, "lr_scheduler": "cosine", "lr_warmup": 0.0})  # fmt: skip
    run, code = train_here(cfg)
    later = config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 6}, optimizer=changed)
    plan = plan_further(run, Wish(steps=6, learning_rate=0.002))
    constant = plan_further(run, Wish(epochs=1, schedule="constant", learning_rate=0.002))
    dump(later, run.config_path, whole=True)
    _, code = train_here(later, run, resume=True)
    assert code == 0, events(run, "error")
    rates = [row["lr"] for row in rows(run)]
    assert rates[:3] == pytest.approx([0.01, 0.0075, 0.0025])
    assert rates[3:] == pytest.approx([0.002 * (0.5 + 0.5 * math.cos(math.pi * step / 6)) for step in (3, 4, 5)])
    # as it was shown before the start
    assert rates == pytest.approx([plan.rate(step) for step in range(6)])
    assert constant.total == 8 and [constant.rate(step) for step in (0, 3, 8)] == [0.01, 0.002, 0.002]
    assert state_of(run)["optimizer"]["param_groups"][0]["weight_decay"] == 0.5

    wider = config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 8}, dataset={"batch_size": 4})
    dump(wider, run.config_path, whole=True)
    assert not any("changed since the run stopped" in event["text"] for event in events(run, "warning"))
    (image_folder / "picture_0.txt").write_text("another caption", encoding="utf-8")
    _, code = train_here(wider, run, resume=True)
    assert code == 0, events(run, "error")
    assert any("The captions of the training images changed" in event["text"] for event in events(run, "warning"))
    assert [(row["step"], row["epoch"]) for row in rows(run)[-2:]] == [(7, 1), (8, 2)]
    assert any("continues with the next epoch after step 6" in event["text"] for event in events(run, "warning"))


def test_without_a_state_there_is_nothing_to_resume(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path), resume=True)
    assert code == 2 and "no saved state" in events(run, "error")[0]["text"]


def test_stop_and_save_and_sample_are_answered_within_a_step(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked for behind another step, by the file that the page writes."""
    cfg = config(
        tiny_flux, image_folder, tmp_path,
        training={"max_train_steps": 9},
        sampling={"prompts": [{"prompt": "a dog", "width": 32, "height": 32, "steps": 2}], "sample_at_end": False},
    )  # fmt: skip
    run, asked, left = Run.create(cfg), {1: "save", 3: "sample", 5: "stop"}, []
    after_step = BetweenSteps.after_step

    def asking(self: BetweenSteps, ended: range) -> None:
        after_step(self, ended)
        if self.position().step in asked:
            left.append(Control(run).pending())
            Control(run).request(asked[self.position().step])

    monkeypatch.setattr(BetweenSteps, "after_step", asking)
    assert train_here(cfg, run)[1] == 0, events(run, "error")
    assert left == [set()] * 3, "what was answered is taken back"
    saved, stopped = [event["step"] for event in events(run, "checkpoint")]
    assert saved in (1, 2) and events(run, "sample")[0]["step"] in (3, 4) and stopped in (5, 6)
    status = run.status()
    assert status.state == "stopped" and status.resumable
    assert events(run, "state")[-1]["step"] == events(run, "stopped")[0]["step"] == rows(run)[-1]["step"] == stopped
