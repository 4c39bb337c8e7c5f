"""Bad input and bad luck: each has its sentence and its mend, in the events, and loses nothing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import backend.training.saver
from backend.runs.folder import Run
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here


def refused(run: Run) -> str:
    """The one error of a run that could not start, with its remedy."""
    (error,) = events(run, "error")
    assert run.status().state == "failed" and error["text"] and error["remedy"]
    return f"{error['text']} {error['remedy']}"


def test_one_corrupt_picture_among_good_ones_is_named_and_left_out(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    picture = image_folder / "picture_3.png"
    picture.write_bytes(picture.read_bytes()[:-60])
    run, code = train_here(config(tiny_flux, image_folder, tmp_path))
    assert code == 0
    warnings = [event["text"] + " ".join(map(str, event.get("files", ()))) for event in events(run, "warning")]
    assert any("picture_3.png" in text for text in warnings), warnings
    assert events(run, "plan")[0]["steps"]["images"] == 7


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("text_encoder_2", "T5"),
        ("vae", "VAE"),
        ("transformer/config.json", "config.json"),
        ("model_index.json", "model_index"),
    ],
)
def test_a_base_model_that_lacks_a_part(
    part: str, words: str, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny_flux, tmp_path / "base"))
    path = base / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    run, code = train_here(config(base, image_folder, tmp_path))
    assert code == 2 and words in refused(run)


def test_captions_that_are_cut_are_counted(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    (image_folder / "picture_0.txt").write_text("a long tale " * 20)
    run, code = train_here(config(tiny_flux, image_folder, tmp_path, model={"text_length": 100}))
    warnings = [event["text"] for event in events(run, "warning") if "tokens" in event["text"]]
    assert code == 0 and len(warnings) == 1 and warnings[0].startswith("1 caption longer than 100 tokens")


def test_an_empty_and_a_missing_folder(tiny_flux: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        run, code = train_here(config(tiny_flux, tmp_path / name, tmp_path))
        assert code == 2 and name in refused(run)


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("optimizer", {"optimizer": "no_such_package.Lion"}, "no_such_package.Lion"),
        ("optimizer", {"optimizer_args": {"amsgard": True}}, "amsgrad"),
        ("optimizer", {"lr_scheduler": "torch.optim.lr_scheduler.StepLR"}, "step_size"),
        ("network", {"targets_include": ["attn.to_qq"]}, "attn.to_q"),
        ("compile", {"compile": False, "attention": "varlen"}, "varlen"),
        ("training", {"mixed_precision": "fp16"}, "CUDA"),
        ("network", {"network_weights": "no/such/lora.safetensors"}, "lora.safetensors"),
        ("compile", {"compile": True, "compile_cache_dir": "/dev/null/cache"}, "Set it to a folder"),
    ],
)
def test_settings_that_only_the_trainer_can_judge_are_refused_before_the_long_work(
    section: str, values: dict, words: str, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    run, code = train_here(config(tiny_flux, image_folder, tmp_path, **{section: values}))
    assert code == 2 and words in refused(run)
    if "network_weights" not in values:
        assert not any(event["phase"] == "cache_latents" for event in events(run, "phase"))


def test_infinity_stops_the_run_and_keeps_the_last_good_lora(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    good, _ = train_here(
        config(tiny_flux, image_folder, tmp_path, optimizer={"learning_rate": 0.01}, saving={"save_every_n_steps": 2})
    )
    poisoned = {"optimizer": "tests.tiny.poison.Poison"}
    run, code = train_here(config(tiny_flux, image_folder, tmp_path, optimizer=poisoned))
    assert code == 1
    message = refused(run)
    assert "nan at step 4" in message and "learning rate" in message and "tiny-step00000002-last-good" in message
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]
    assert same(lora_of(run, "tiny-step00000002-last-good.safetensors"), lora_of(good, "tiny-step00000002.safetensors"))
    assert not (run.checkpoints_dir / "tiny.safetensors").exists() and not run.has_state()
    # what was saved before it counts as the last good one, when it is newer
    saved = config(tiny_flux, image_folder, tmp_path, optimizer=poisoned, saving={"save_every_n_steps": 1})
    run, _ = train_here(saved)
    assert "tiny-step00000002.safetensors" in refused(run)
    assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == [
        "tiny-step00000001.safetensors",
        "tiny-step00000002.safetensors",
    ]


def test_a_lora_that_no_file_can_hold_keeps_its_state(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    """Values too large for fp16 at the only save of the run: with another precision it then ends as if nothing were."""
    cfg = config(
        tiny_flux, image_folder, tmp_path, training={"max_train_steps": 1}, network={"loraplus_lr_ratio": 1000},
        optimizer={"learning_rate": 1000, "lr_warmup": 0, "lr_scheduler": "constant"},
        saving={"save_precision": "fp16", "save_state": False},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code != 0 and "too large for fp16" in refused(run)
    assert run.has_state() and "resume state of step 1 is kept" in refused(run)
    assert not list(run.checkpoints_dir.glob("*.safetensors"))
    held = state_of(run)["lora"]
    saved = run.config_path.read_text(encoding="utf-8")
    run.config_path.write_text(saved.replace('save_precision = "fp16"', 'save_precision = "fp32"'), encoding="utf-8")
    _, code = train_here(cfg, run, resume=True)
    assert code == 0 and max(value.abs().max() for value in lora_of(run).values()) > 65504
    assert max(value.abs().max() for value in held.values()) > 65504


class FullDisk:
    """Flushing a file below one of these folders fails, as it does when the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.left = failures
        self._flush = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(backend.training.saver, "AGAIN_S", 0.0)
        monkeypatch.setattr(backend.training.saver, "WAIT_S", 0.2)

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.left and (".safetensors" in path or "optimizer.pt" in path) and "/runs/" in path:
            self.left -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self._flush(descriptor)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="tells files by /proc")
def test_a_full_disk_in_the_middle_is_said_and_the_run_goes_on(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch, failures=1)
    run, code = train_here(config(tiny_flux, image_folder, tmp_path, saving={"save_every_n_steps": 3}))
    assert code == 0 and run.status().state == "done"
    (warning,) = [event for event in events(run, "warning") if "could not be saved" in event["text"]]
    assert "Step 3" in warning["text"] and "No space left" in warning["text"]
    assert "Free some space" in warning["remedy"]
    # tried again at the next step
    assert [event["step"] for event in events(run, "checkpoint")] == [4, 6]
    assert not list(run.path.rglob("*.part"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="tells files by /proc")
def test_a_full_disk_at_the_end_loses_nothing_that_was_saved(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, _ = train_here(config(tiny_flux, image_folder, tmp_path))
    cfg = config(tiny_flux, image_folder, tmp_path, saving={"save_every_n_steps": 4})
    disk = FullDisk(monkeypatch, failures=0)
    saved = backend.training.saver.Saver.save_final

    def full_from_here(self: backend.training.saver.Saver) -> Path:
        disk.left = 10**6
        return saved(self)

    monkeypatch.setattr(backend.training.saver.Saver, "save_final", full_from_here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run, code = train_here(cfg)
    assert code == 1
    message = refused(run)
    # another disk has room: LoRA and state of the last step are there
    other = tmp_path / "home" / "monotile-rescued" / run.name
    assert f"LoRA and state of step 6 are kept in {other}" in message and "copy" in message
    rescued = Run(other)
    assert same(lora_of(rescued, "tiny-step00000006.safetensors"), lora_of(straight))
    assert same(state_of(rescued), state_of(straight))
    assert "No space left" in message and "Free some space" in message
    assert any("waits" in event["remedy"] for event in events(run, "warning"))
    assert [path.name for path in run.checkpoints_dir.iterdir()] == ["tiny-step00000004.safetensors"]
    assert run.status().state_step == 4
    monkeypatch.undo()
    _, code = train_here(cfg, run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(straight)) and same(state_of(run), state_of(straight))
    # or, copied back, with no step lost
    again = Run(shutil.copytree(run.path, tmp_path / "again"))
    shutil.rmtree(again.state_dir)
    shutil.copytree(other, again.path, dirs_exist_ok=True)
    _, code = train_here(cfg, again, resume=True)
    assert code == 0 and events(again, "resumed")[-1]["step"] == 6


def test_stale_settings_of_accelerate_change_nothing(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = train_here(config(tiny_flux, image_folder, tmp_path))
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "7")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    stale, code = train_here(config(tiny_flux, image_folder, tmp_path))
    assert code == 0 and same(lora_of(plain), lora_of(stale))
    assert [row["loss"] for row in rows(plain)] == [row["loss"] for row in rows(stale)]
