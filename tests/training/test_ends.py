"""However a run ends between its first step and its last save, the last whole step is kept and can be resumed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import backend.runs.state_folder
import backend.training.save_check
import backend.training.saved_files
import backend.training.saver
from backend.config.schema import Config
from backend.latents.store import LatentCache
from backend.lora.inject import Lora
from backend.memory.sample_decoder import SampleDecoder
from backend.runs.control import Control
from backend.runs.events import read_events
from backend.runs.folder import Run
from backend.runs.state_folder import replaceable_bytes
from backend.training.monitor import Monitor
from backend.training.save_check import room_problems
from backend.training.trainer import Trainer
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

STEPS = 5
PROMPT = {"prompt": "a dog", "width": 32, "height": 32, "steps": 1}


class Place:
    """Pictures and a cache that all runs here share, and the run that went through."""

    def __init__(self, base: Path, where: Path) -> None:
        self.base, self.where = base, where
        self.images = draw_pictures(where / "images")
        self.straight, code = train_here(self.settings(saving={"save_every_n_steps": 1}))
        assert code == 0, events(self.straight, "error")

    def settings(self, **changes: dict[str, Any]) -> Config:
        """Settings of a run of `STEPS` steps."""
        changes["training"] = {"max_train_steps": STEPS, **changes.get("training", {})}
        return config(self.base, self.images, self.where, **changes)

    def failed(self, **changes: dict[str, Any]) -> tuple[Run, str]:
        """A run that fails, and what it says."""
        run, code = train_here(self.settings(**changes))
        assert code == 1 and run.status().state == "failed"
        (error,) = events(run, "error")
        assert error["remedy"]
        return run, error["text"]

    def is_step(self, run: Run, step: int) -> bool:
        """True when LoRA file and state of `run` are those of the straight run at `step`."""
        name = f"tiny-step{step:08d}.safetensors"
        expected = lora_of(self.straight, name)
        position = run.status().state_step
        return same(lora_of(run, name), expected) and position == step and len(state_of(run)["lora"]) > 0


@pytest.fixture(scope="module")
def place(tiny_flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tiny_flux, tmp_path_factory.mktemp("ends"))


def at_call(number: int, real: Callable[..., Any], error: BaseException, after: bool = False) -> Callable[..., Any]:
    """`real`, which raises `error` at its call `number`, before or after it did its work."""
    calls = []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == number and not after:
            raise error
        result = real(*arguments, **named)
        if len(calls) == number:
            raise error
        return result

    return call


@pytest.mark.parametrize(
    ("owner", "name", "error", "after", "kept"),
    [
        # in the pass of step 4; a library that ends the process; in the device's own code
        (Trainer, "loss", ValueError("an error nobody thought of"), False, 3),
        (Trainer, "backward", SystemExit("a library gave up"), True, 3),
        # after the optimizer's step, before and while it is counted
        (Trainer, "count_batch", RuntimeError("CUDA error: unknown error"), False, 4),
        (Monitor, "measure", OSError(errno.EIO, "Input/output error"), False, 4),
    ],
)
def test_an_error_in_a_step_keeps_the_last_whole_one(
    owner: type, name: str, error: BaseException, after: bool, kept: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, at_call(4, getattr(owner, name), error, after))
        run, message = place.failed()
    assert f"The LoRA of step {kept} is kept in checkpoints/tiny-step{kept:08d}.safetensors. Resume" in message
    assert place.is_step(run, kept)
    assert str(error.args[-1]) in events(run, "error")[0]["exception"]
    if name == "measure":
        _, code = train_here(place.settings(), run, resume=True)
        assert code == 0 and same(lora_of(run), lora_of(place.straight))
        assert same(state_of(run), state_of(place.straight))


def test_an_error_before_the_first_step_is_told_as_it_is(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "loss", at_call(1, Trainer.loss, ValueError("an error nobody thought of")))
    run, message = place.failed()
    assert "nobody thought of" in message and not run.has_state() and not list(run.checkpoints_dir.iterdir())


@pytest.mark.parametrize("what", ["samples", "validation"])
def test_samples_or_validation_that_fail_keep_the_step_before_them(
    what: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network drive that is gone when the VAE is read; any error of measuring."""
    if what == "samples":
        monkeypatch.setattr(
            SampleDecoder, "decode", at_call(1, SampleDecoder.decode, FileNotFoundError(2, "no", "/net/vae"))
        )
        changes = {"sampling": {"prompts": [PROMPT], "sample_every_n_steps": 2}}
    else:
        monkeypatch.setattr(
            "backend.training.measuring.validate", at_call(1, None, RuntimeError("an unknown kernel error"))
        )
        held_out = [{"path": str(place.images), "name": "same"}]
        changes = {"validation": {"validation_folders": held_out, "validate_every_n_steps": 2}}
    run, message = place.failed(**changes)
    assert "The LoRA of step 2 is kept" in message and place.is_step(run, 2)


def test_samples_that_fail_at_the_end_leave_the_finished_lora_and_say_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SampleDecoder, "decode", at_call(1, SampleDecoder.decode, RuntimeError("an unknown kernel error"))
    )
    run, message = place.failed(sampling={"prompts": [PROMPT]})
    assert "The finished LoRA is kept in checkpoints/tiny.safetensors. Resume" in message
    assert same(lora_of(run), lora_of(place.straight)) and same(state_of(run), state_of(place.straight))
    assert [path.name for path in run.checkpoints_dir.iterdir()] == ["tiny.safetensors"]


def test_weights_of_no_whole_step_are_not_saved_as_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer fails half-way; and a device that is lost takes neither questions nor values."""
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", at_call(4, step, RuntimeError("launch failure"), after=True))
    monkeypatch.setattr(Lora, "restore", at_call(1, None, RuntimeError("CUDA error: unspecified launch failure")))
    run, message = place.failed()
    # a step is known to be good once the one after it is
    assert "The last good LoRA is kept: checkpoints/tiny-step00000002-last-good.safetensors." in message
    kept = lora_of(run, "tiny-step00000002-last-good.safetensors")
    assert same(kept, lora_of(place.straight, "tiny-step00000002.safetensors")) and not run.has_state()


def test_a_lora_that_can_not_be_written_leaves_the_state(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that the layout has no name for is found at the first save."""
    files = backend.training.saved_files.LoraFiles
    with monkeypatch.context() as patch:
        patch.setattr(files, "content", at_call(1, files.content, KeyError("pos_embed.proj")))
        run, message = place.failed(saving={"save_every_n_steps": 2})
    assert "The LoRA of step 2 is kept" in message and run.status().state_step == 2

    def never(*_: Any) -> None:
        raise KeyError("pos_embed.proj")

    with monkeypatch.context() as patch:
        patch.setattr(files, "content", never)
        run, message = place.failed(saving={"save_every_n_steps": 2})
    assert "The resume state of step 2 is kept, and the LoRA file could not be written" in message
    _, code = train_here(place.settings(), run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(place.straight))


def test_a_finished_lora_whose_state_has_no_room_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.training.saver, "WAIT_S", 0.0)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(full))
    run, message = place.failed()
    assert "No space left" in message and "The finished LoRA is kept in checkpoints/tiny.safetensors." in message
    assert run.status().error.kind == run.record()["error"]["kind"] == "disk_full", "the queue pauses by it"
    assert "There is no resume state." in message and "Free some space" in events(run, "error")[0]["remedy"]
    assert [path.name for path in run.checkpoints_dir.iterdir()] == ["tiny.safetensors"]
    assert same(lora_of(run), lora_of(place.straight)) and not list(run.path.rglob("*.part"))


def test_a_cache_file_lost_with_its_picture_ends_the_run_with_the_last_step(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = draw_pictures(tmp_path / "images")
    cfg = config(
        place.base, images, tmp_path, training={"max_train_steps": 12}, dataset={"loader_workers": 0},
    )  # fmt: skip
    monkeypatch.setattr(Trainer, "loss", lose(tmp_path, images, at=3))
    run, code = train_here(cfg)
    (error,) = events(run, "error")
    assert code == 1 and "can't be read" in error["text"] and "The LoRA of step " in error["text"]
    assert run.status().state_step >= 3 and state_of(run)["lora"]


def lose(cache: Path, images: Path | None, at: int) -> Callable[..., Any]:
    """`Trainer.loss`, before whose call `at` every cache file turns into a folder; the pictures go too, where given."""
    real, calls = Trainer.loss, []

    def loss(self: Trainer, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            for path in list((cache / "cache").rglob("*.safetensors")):
                path.unlink()
                path.mkdir()
            for path in images.glob("*.png") if images is not None else ():
                path.unlink()
        return real(self, batch)

    return loss


def test_what_is_no_part_of_training_costs_no_training(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TensorBoard, the folder for requests, the cache and the record fail one after the other: the run is done."""
    from torch.utils.tensorboard import SummaryWriter

    broken = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(SummaryWriter, "add_scalar", at_call(3, SummaryWriter.add_scalar, broken))
    monkeypatch.setattr(Control, "pending", at_call(4, Control.pending, broken))
    monkeypatch.setattr(Run, "finish", at_call(1, Run.finish, broken))
    images = draw_pictures(tmp_path / "images")
    monkeypatch.setattr(Trainer, "loss", lose(tmp_path, None, at=2))
    write, calls = LatentCache.write, []

    def refused(self: LatentCache, path: Path, tensors: Any, **words: str) -> None:
        calls.append(path)
        return write(self, path, tensors, **words)

    monkeypatch.setattr(LatentCache, "write", refused)
    cfg = config(place.base, images, tmp_path, training={"max_train_steps": STEPS}, logging={"tensorboard": True})
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert same(lora_of(run), lora_of(place.straight)), "pictures that were encoded again give the same steps"
    assert [row["loss"] for row in rows(run)] == [row["loss"] for row in rows(place.straight)]
    assert events(run, "done") and len(calls) > 8
    assert any("encoded again" in event["remedy"] for event in events(run, "warning"))


def test_the_state_is_kept_in_time_without_any_save_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill or a power cut costs at most is ten minutes; here it is a step."""
    monkeypatch.setattr(backend.training.saver, "STATE_EVERY_S", 0.0)

    def killed(self: Trainer, batch: Any, real: Any = Trainer.loss) -> Any:
        if self.position.step == 3:
            raise KeyboardInterrupt
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "loss", killed)
        run, code = train_here(place.settings())
    assert code == 1 and not list(run.checkpoints_dir.iterdir())
    assert run.status().state_step == 3 and [event["step"] for event in events(run, "state")] == [1, 2, 3]
    assert not any(event["phase"] == "save" for event in events(run, "phase"))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", at_call(1, torch.save, OSError(errno.EIO, "Input/output error")))
        _, code = train_here(place.settings(), run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(place.straight)) and same(state_of(run), state_of(place.straight))
    assert any("The resume state of step 4 could not be saved" in event["text"] for event in events(run, "warning"))


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_state_is_told_and_steps_that_come_again_replace_their_samples(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = place.settings(
        saving={"save_every_n_steps": 1},
        sampling={"prompts": [PROMPT], "sample_every_n_steps": 3},
    )
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "loss", at_call(4, Trainer.loss, KeyboardInterrupt()))
        run, code = train_here(cfg)
    assert code == 1 and sorted(state.name for state in run.state_dir.glob("step-*")) == [
        "step-00000002", "step-00000003"]  # fmt: skip
    flip(run.state_dir / "step-00000003" / "optimizer.pt")
    _, code = train_here(cfg, run, resume=True)
    assert code == 0 and events(run, "resumed")[0]["step"] == 2
    (warning,) = [event["text"] for event in events(run, "warning") if "is damaged" in event["text"]]
    assert "optimizer.pt" in warning and "step-00000003" in warning and "step-00000002" in warning
    assert same(lora_of(run), lora_of(place.straight))
    samples = {path.name: path.stat().st_mtime_ns for path in run.samples_dir.iterdir()}
    assert sorted(samples) == ["step00000003-0.png", "step00000005-0.png"]
    # nothing is left to train: nothing is drawn again
    _, code = train_here(cfg, run, resume=True)
    assert code == 0 and samples == {path.name: path.stat().st_mtime_ns for path in run.samples_dir.iterdir()}
    assert [event["step"] for event in events(run, "sample")] == [3, 3, 5]


def test_a_flipped_byte_in_each_file_of_a_run_costs_at_most_that_file(place: Place, tmp_path: Path) -> None:
    run = Run(shutil.copytree(place.straight.path, tmp_path / "copied"))
    for path in (run.record_path, run.events_path, run.metrics_path, run.checkpoints_dir / "tiny.safetensors"):
        flip(path)
    assert run.status().text and run.checkpoints()
    _, code = train_here(place.settings(), run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(place.straight)) and run.status().state == "done"
    run.config_path.write_bytes(b"[training\n" + run.config_path.read_bytes())
    assert train_here(place.settings(), run, resume=True)[1] == 2
    # the line with the flipped byte is none any more
    assert "not TOML" in read_events(run.events_path)[0][-1].text


def test_what_can_not_be_saved_is_refused_before_the_first_step(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name(*_: Any) -> None:
        raise KeyError("pos_embed.proj")

    with monkeypatch.context() as patch:
        patch.setattr(backend.training.saved_files, "file_tensors", no_name)
        run, code = train_here(place.settings())
    (error,) = events(run, "error")
    assert code == 2 and "pos_embed.proj" in error["text"] and "save_layout" in error["remedy"] and not rows(run)


def test_room_for_lora_and_states_is_looked_for_before_the_first_step(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place.straight
    older = replaceable_bytes(run.state_dir)
    assert 10_000 < older < 1_000_000
    for free, severity in ((2_500_000, None), (1_500_000, "warning"), (900_000, "error")):
        monkeypatch.setattr(backend.training.save_check, "free_bytes", lambda _, free=free: free - older)
        problems = room_problems(run, 500_000, 600_000)
        assert [problem.severity for problem in problems] == ([severity] if severity else [])
    assert "a LoRA file of 500.0 KB and a resume state of 600.0 KB" in problems[0].text


def test_a_disk_that_does_not_even_answer_a_look_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network drive is gone for a moment: the look at a name fails, where nothing is written yet."""
    monkeypatch.setattr(backend.training.saver, "AGAIN_S", 0.0)
    gone = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(backend.training.saver, "unused_path", at_call(1, backend.training.saver.unused_path, gone))
    monkeypatch.setattr(backend.runs.state_folder, "_latest", at_call(2, backend.runs.state_folder._latest, gone))
    run, code = train_here(place.settings(saving={"save_every_n_steps": 2}))
    assert code == 0 and same(lora_of(run), lora_of(place.straight)), events(run, "error")
    (warning,) = [event for event in events(run, "warning") if "could not be saved" in event["text"]]
    assert "Step 2" in warning["text"] and "Stale file handle" in warning["text"] and warning["remedy"]
    assert [event["step"] for event in events(run, "checkpoint")] == [3, 4, 5]
