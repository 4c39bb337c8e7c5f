"""A run that overfits keeps its best LoRA, ends early and says why, also when it is stopped and resumed in between."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from PIL import Image, ImageOps
from rich.console import Console

from backend.base.errors import WriteFailed
from backend.config.schema import Config, with_values
from backend.config.toml_io import dump
from backend.lora_tools.__main__ import main as lora_command
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.events.kinds import DoneEvent, Event, ResumedEvent, ValidationEvent
from backend.runs.events.validation import AverageEvent, BestEvent, EarlyStopEvent, OverfitEvent
from backend.runs.folder import Run
from backend.runs.process import MARKER
from backend.training.averaging import Averaging
from backend.training.best import BestFile
from backend.training.between_steps import BetweenSteps
from backend.training.follow_up import FollowUp
from backend.training.terminal import event_line
from backend.training.validation_history import Measurement, ValidationHistory, overfitting_of
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, lora_of, rows, same, train_here

EVERY, PATIENCE, STEPS, AVERAGED = 4, 3, 80, 3
STOPPED_AT = 26


def settings(base: Path, where: Path, **validation: Any) -> Config:
    """One small picture at a high rate, and others to measure."""
    return config(
        base, where / "trained", where,
        dataset={"resolution": 32},
        network={"network_dim": 8, "network_alpha": 8.0},
        optimizer={"learning_rate": 0.05, "lr_scheduler": "constant", "lr_warmup": 0.0},
        training={"max_train_steps": STEPS},
        timesteps={"timestep_sampling": "uniform", "min_timestep": 50.0, "max_timestep": 350.0},
        saving={"keep_best": True, "save_every_n_steps": EVERY, "save_last_n": 1, "average_checkpoints": AVERAGED,
                "average_from": "best"},
        validation={"validation_folders": [{"path": str(where / "others"), "name": "others"}],
                    "validate_every_n_steps": EVERY, "validation_sigmas": [0.2, 0.35], "validate_training_images": 3,
                    "early_stop_patience": PATIENCE, **validation},
    )  # fmt: skip


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overfit")
    draw_pictures(folder / "trained", ((32, 32),))
    for path in draw_pictures(folder / "others", ((32, 32),) * 3).glob("*.png"):
        ImageOps.invert(Image.open(path)).rotate(90).save(path)
    return folder


@pytest.fixture(scope="module")
def run(tiny_flux: Path, where: Path) -> Run:
    """Stopped by a person after its best step, then resumed to its early stop; nobody changes it."""
    cfg = settings(tiny_flux, where)
    run = Run.create(cfg)
    done = BetweenSteps.after_step

    def stop_once(self: BetweenSteps, ended_epochs: Any) -> None:
        done(self, ended_epochs)
        if self.position().step == STOPPED_AT:
            Control(run).request("stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BetweenSteps, "after_step", stop_once)
        assert train_here(cfg, run)[1] == 0 and run.status().state == "stopped", events(run, "error")
    assert resumed(cfg, run).status().state == "done", events(run, "error")
    return run


def resumed(cfg: Config, run: Run) -> Run:
    """Resume in this process as in one of its own, which would forget what an earlier one was asked."""
    os.environ.pop(MARKER, None)
    dump(cfg, run.config_path, whole=True)
    assert train_here(cfg, run, resume=True)[1] == 0, events(run, "error")
    return run


def losses(run: Run, name: str = "others") -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events(run, "validation") if event["set"] == name}


def saved_at(step: int) -> str:
    return f"tiny-step{step:08d}.safetensors"


def plain(event: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event's line."""
    return {name: value for name, value in event.items() if name not in ("v", "kind")}


def end_of(measured: Mapping[int, float]) -> int | None:
    """The step at which `PATIENCE` validations in a row were not lower than all before."""
    lowest, waited = math.inf, 0
    for step, loss in measured.items():
        lowest, waited = (loss, 0) if loss < lowest else (lowest, waited + 1)
        if waited == PATIENCE:
            return step
    return None


def test_the_best_file_is_the_lora_of_the_lowest_loss(run: Run) -> None:
    """keep_best: the file equals the LoRA saved at that step, and says step and loss."""
    measured = losses(run)
    lowest = min(measured, key=lambda step: measured[step])
    assert lowest < STOPPED_AT < max(measured)
    assert same(lora_of(run, "tiny-best.safetensors"), lora_of(run, saved_at(lowest)))
    with safetensors.safe_open(run.checkpoints_dir / "tiny-best.safetensors", "pt") as opened:
        metadata = opened.metadata()
    assert int(metadata["ss_steps"]) == lowest and float(metadata["ss_validation_loss"]) == measured[lowest]
    best = events(run, "best")
    assert (best[-1]["step"], best[-1]["loss"]) == (lowest, measured[lowest])
    assert best[-1]["file"] == "checkpoints/tiny-best.safetensors"
    # each time the loss was lower than all before, and never again after the resume
    falls = [s for s in measured if all(measured[s] < measured[before] for before in measured if before < s)]
    assert [event["step"] for event in best] == falls
    assert {file.path.name: file.step for file in run.checkpoints()}["tiny-best.safetensors"] == lowest


def test_the_best_files_stay_and_are_averaged(run: Run) -> None:
    """average_from best: save_last_n leaves those of the lowest losses, and the average of them is measured too."""
    measured = losses(run)
    best = sorted(sorted(measured, key=lambda step: measured[step])[:AVERAGED])
    end = max(measured)
    names = {path.name for path in run.checkpoints_dir.glob("*.safetensors")}
    mean = f"tiny-step{end:08d}-average.safetensors"
    assert names == {"tiny-best.safetensors", "tiny.safetensors", mean, *(saved_at(step) for step in {*best, end})}
    (event,) = events(run, "average")
    assert event["steps"] == best and event["file"] == f"checkpoints/{mean}"
    assert (event["final_loss"], event["lowest_loss"]) == (measured[end], min(measured.values()))
    # between files of one valley it is no worse than the worst of them
    assert event["loss"] < max(measured[step] for step in best)
    with safetensors.safe_open(run.checkpoints_dir / mean, "pt") as opened:
        assert json.loads(opened.metadata()["ss_averaged_steps"]) == best
    # the command makes the same file of the same files
    made, files = run.path / "mean.safetensors", [run.checkpoints_dir / saved_at(step) for step in best]
    assert lora_command(["average", *map(str, files), "--out", str(made)], Console(file=io.StringIO())) == 0
    assert same(safetensors.torch.load_file(made), lora_of(run, mean))
    with safetensors.safe_open(made, "pt") as opened:
        assert json.loads(opened.metadata()["ss_averaged_steps"]) == best
    done = events(run, "done")[-1]
    assert done["average"]["loss"] == event["loss"] and f"{event['loss']:.5f}" in event_line(
        AverageEvent(**plain(event))
    )
    # neither of the two files beside the run's own is taken for its newest
    assert [(file.path.name, file.role) for file in run.checkpoints() if file.step == end][0] == (mean, "average")
    assert run.checkpoints()[-1].path.name == "tiny.safetensors"


def test_the_last_files_are_averaged_as_what_they_change(
    run: Run, tiny_flux: Path, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """average_checkpoints: nearer to the mean of the changes than factors averaged by themselves; and what is trained
    is put back."""
    lowest = events(run, "best")[-1]["step"]
    changes = {"training.max_train_steps": lowest, "saving.keep_best": False, "saving.save_last_n": AVERAGED}
    cfg = with_values(settings(tiny_flux, where), {**changes, "saving.average_from": "last"})
    trained = []
    at_end = Averaging.at_end

    def watched(self: Averaging, measure: Any) -> Any:
        before = {name: value.clone() for name, value in self.saver.weights.tensors().items()}
        event = at_end(self, measure)
        trained.append(same(before, self.saver.weights.tensors()))
        return event

    monkeypatch.setattr(Averaging, "at_end", watched)
    straight, code = train_here(cfg)
    assert code == 0 and trained == [True], events(straight, "error")
    assert not straight.status().resumable and "early stop" not in straight.status().text
    assert losses(straight) == {step: loss for step, loss in losses(run).items() if step <= lowest}
    # a run that ends at its best step: its finished LoRA is the same
    assert same(lora_of(straight), lora_of(run, "tiny-best.safetensors"))
    assert not (straight.checkpoints_dir / "tiny-best.safetensors").exists()
    (event,) = events(straight, "average")
    steps = [lowest - 2 * EVERY, lowest - EVERY, lowest]
    files = [lora_of(straight, saved_at(step)) for step in steps[:-1]] + [lora_of(straight)]
    mean = lora_of(straight, Path(event["file"]).name)
    assert event["steps"] == steps and mean.keys() == files[0].keys()
    lost = whole = of_factors = 0.0
    for up in (key for key in mean if ".lora_up." in key):
        down = up.replace("lora_up", "lora_down")
        exact = sum(file[up] @ file[down] for file in files) / len(files)
        whole += float(exact.square().sum())
        lost += float((mean[up] @ mean[down] - exact).square().sum())
        factors = [sum(file[key] for file in files) / len(files) for key in (up, down)]
        of_factors += float((factors[0] @ factors[1] - exact).square().sum())
    assert 0 < lost < of_factors and event["error"] == pytest.approx((lost / whole) ** 0.5, rel=1e-2)


def test_the_run_ends_where_its_losses_say(run: Run) -> None:
    """early_stop_patience, also counted over the stop in between."""
    measured = losses(run)
    end = max(measured)
    assert end_of(measured) == end < STEPS and end > STOPPED_AT
    (event,) = events(run, "early_stop")
    lowest = events(run, "best")[-1]
    assert (event["step"], event["total"], event["validations"]) == (end, STEPS, PATIENCE)
    assert (event["lowest_step"], event["lowest_loss"], event["file"]) == tuple(
        lowest[k] for k in ("step", "loss", "file")
    )
    done = events(run, "done")[-1]
    assert done["step"] == end and done["best"]["step"] == lowest["step"] and done["early_stop"]["step"] == end
    status = run.status()
    assert (status.state, status.step, status.resumable) == ("done", end, True)
    assert f"{end} of {STEPS} steps (early stop)" in status.text
    # measured once at its last step, which has no validation of its own
    assert [each["step"] for each in events(run, "validation") if each["set"] == "others"] == list(measured)
    text = event_line(EarlyStopEvent(**plain(event)))
    assert f"step {end} of {STEPS}" in text and f"at step {lowest['step']}" in text and "tiny-best" in text


def test_overfitting_is_said_once(run: Run) -> None:
    """validate_training_images: their loss is measured with the same noise, and falls while the other rises."""
    held_out, trained = losses(run), losses(run, "training images")
    assert held_out.keys() == trained.keys()
    lowest = min(held_out, key=lambda step: held_out[step])
    shown = [
        step
        for step in held_out
        if step > lowest and held_out[step] > 1.01 * held_out[lowest] and trained[step] < trained[lowest]
    ]
    (event,) = events(run, "overfit")
    assert event["state"] == "begun" and event["step"] == shown[1]
    assert (event["lowest_step"], event["lowest_training_loss"]) == (lowest, trained[lowest])


def test_a_run_that_ended_early_goes_on_when_it_is_resumed(
    run: Run, tiny_flux: Path, where: Path, tmp_path: Path
) -> None:
    """Not stopped at once: first after one validation more, where one without gain is enough."""
    copy = Run(shutil.copytree(run.path, tmp_path / run.name))
    end = events(run, "done")[-1]["step"]
    best = (copy.checkpoints_dir / "tiny-best.safetensors").read_bytes()
    resumed(settings(tiny_flux, where, early_stop_patience=1), copy)
    measured = losses(copy)
    assert measured[end + EVERY] > min(measured.values())
    assert [event["step"] for event in events(copy, "early_stop")] == [end, end + EVERY]
    assert copy.status().step == end + EVERY == rows(copy)[-1]["step"]
    assert (copy.checkpoints_dir / "tiny-best.safetensors").read_bytes() == best


def history(*measured: float, fresh_from: int = 0) -> ValidationHistory:
    measurements = [Measurement(step=number, loss=loss) for number, loss in enumerate(measured)]
    return ValidationHistory(measurements=measurements, fresh_from=fresh_from)


def test_a_gain_counts_from_the_smallest_that_is_set() -> None:
    """early_stop_min_gain; small steps down add up to one."""
    falling = [1.0, 0.96, 0.92, 0.88]
    assert [history(*falling[: n + 1]).without_gain(0.0) for n in range(4)] == [0, 0, 0, 0]
    assert [history(*falling[: n + 1]).without_gain(0.1) for n in range(4)] == [0, 1, 2, 0]
    assert history(1.0, math.nan, 1.1, 0.5, math.nan).without_gain(0.0) == 1
    assert history(math.nan, math.nan).without_gain(0.0) == 2 and history().without_gain(0.0) == 0
    # finished after the third: the count begins again, the loss to beat does not
    assert history(0.5, 0.6, 0.7, fresh_from=3).without_gain(0.0) == 0
    assert history(0.5, 0.6, 0.7, 0.55, fresh_from=3).without_gain(0.0) == 1
    assert history(math.nan, 0.5, 0.4, 0.4).lowest == Measurement(step=2, loss=0.4) and history(math.nan).lowest is None


def test_overfitting_begins_and_ends() -> None:
    def state(*measured: tuple[float, float | None]) -> tuple[int, int] | None:
        overfitting = overfitting_of(
            [Measurement(step=n, loss=a, training_loss=b) for n, (a, b) in enumerate(measured)]
        )
        return overfitting and (overfitting.since.step, overfitting.lowest.step)

    begun = ((1.0, 1.0), (0.9, 0.9), (0.95, 0.8), (0.96, 0.7))
    assert state(*begun[:3]) is None and state(*begun) == (3, 1)
    # near the lowest it is still there; with a new lowest, or worse on its own pictures, no longer
    assert state(*begun, (0.9001, 0.6)) == (3, 1)
    assert state(*begun, (0.89, 0.6)) is None and state(*begun, (0.97, 0.91)) is None
    # both rise, hardly any rise, nothing to compare with
    assert state((0.9, 0.9), (1.0, 0.95), (1.1, 1.0)) is None
    assert state((0.9, 0.9), (0.905, 0.8), (0.908, 0.7), (0.909, 0.6)) is None
    assert state((0.9, None), (1.0, None), (1.1, None)) is None


def test_each_conclusion_is_written_once_and_taken_back(tmp_path: Path) -> None:
    """Without a run: losses of eight validations, of which the last would end it early."""
    made = Run.create_empty(tmp_path, "losses")
    cfg = with_values(Config(), {"validation.early_stop_patience": 3})
    follow_up = FollowUp(settings=cfg.validation, total_steps=99, history=ValidationHistory(), events=EventWriter(made))
    pairs = [(1.0, 1.0), (0.8, 0.9), (0.9, 0.8), (0.95, 0.7), (0.7, 0.7), (0.71, 0.6), (0.72, 0.6), (0.73, 0.6)]
    for step, (held_out, trained) in enumerate(pairs):
        assert follow_up.early_stop is None
        follow_up.after(step, {("a", False): held_out - 0.1, ("b", False): held_out + 0.1, ("t", True): trained})
    written = [(event["kind"], event["step"], event.get("state")) for event in events(made)]
    assert written == [
        ("best", 0, None),
        ("best", 1, None),
        ("overfit", 3, "begun"),
        ("best", 4, None),
        ("overfit", 4, "ended"),
        ("overfit", 6, "begun"),
        ("early_stop", 7, None),
    ]
    assert follow_up.result()["best"]["step"] == 4 and follow_up.result()["early_stop"]["lowest_step"] == 4
    for event in (BestEvent(step=4, loss=0.7, file="x"), OverfitEvent(step=4, state="ended", loss=0.7)):
        assert event_line(event).count("step 4") + event_line(event).count("Step 4") >= 1

    # killed after this was measured and before the run was saved as finished: it ends as it would have
    def resumed_at(step: int, fresh_from: int = 0) -> bool:
        known = ValidationHistory(measurements=list(follow_up.history.measurements), fresh_from=fresh_from)
        again = FollowUp(settings=cfg.validation, total_steps=99, history=known, events=EventWriter(made))
        again.resumed(step)
        return again.early_stop is not None

    assert resumed_at(7) and not resumed_at(8) and not resumed_at(7, fresh_from=len(pairs))


def test_a_resume_takes_back_what_was_measured_behind_its_state() -> None:
    def measured(step: int, loss: float | None, name: str = "a", identity: str = "i", trained: bool = False) -> Event:
        return ValidationEvent(step=step, set=name, loss=loss, identity=identity, trained=trained)

    identities = {("a", False): "i", ("b", False): "j", ("t", True): "k"}
    first = [event for step in (2, 4, 6, 8) for event in (
        measured(step, step / 10), measured(step, 0.5, "b", "j"), measured(step, 0.1, "t", "k", True))]  # fmt: skip
    whole = ValidationHistory.from_events(first, identities, 8)
    assert [(m.step, m.loss, m.training_loss) for m in whole.measurements[:2]] == [(2, 0.35, 0.1), (4, 0.45, 0.1)]
    # killed behind step 8, resumed at 4, measured again at 5, killed, and now resumed at 7
    again = [*first, ResumedEvent(step=4), measured(5, 0.2), measured(5, 0.3, "b", "j"), ResumedEvent(step=7)]
    assert [m.step for m in ValidationHistory.from_events(again, identities, 7).measurements] == [2, 4, 5]
    # half a validation, other pictures, and events of before there were identities are no measurement
    half = [measured(2, 0.1), measured(4, 0.1, identity="x"), measured(4, 0.5, "b", "j"), measured(6, 0.1, identity="")]
    assert ValidationHistory.from_events(half, identities, 9).measurements == []
    lost = [
        measured(2, None),
        measured(2, 0.5, "b", "j"),
        DoneEvent(step=2),
        measured(4, 0.1),
        measured(4, 0.5, "b", "j"),
    ]
    kept = ValidationHistory.from_events(lost, identities, 4)
    assert (
        [m.step for m in kept.measurements] == [2, 4] and math.isnan(kept.measurements[0].loss) and kept.fresh_from == 1
    )


def test_a_disk_that_refuses_the_best_file_costs_a_warning(tmp_path: Path) -> None:
    """A file of other pictures is kept under another name; one that is better stays."""
    written: list[int] = []

    def write(path: Path, step: int, more: Mapping[str, str]) -> None:
        if not written:
            written.append(-1)
            raise WriteFailed("The disk is full.", "Free some space.")
        written.append(step)
        safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata=dict(more))

    made = Run.create_empty(tmp_path, "best")
    saver: Any = SimpleNamespace(
        run=made,
        settings=SimpleNamespace(output_name="x"),
        events=EventWriter(made),
        to_use=nullcontext,
        write_beside=write,
    )
    best = BestFile(saver=saver, identity="i")
    for step, loss in ((1, 0.5), (2, 0.6), (3, 0.6), (4, math.nan), (5, 0.4)):
        best.offer(Measurement(step=step, loss=loss))
    assert written == [-1, 2, 5] and best.name == "checkpoints/x-best.safetensors"
    (warning,) = events(made, "warning")
    assert "step 1" in warning["text"] and warning["remedy"] == "Free some space."
    # a new process knows the file by what it says of itself
    same_pictures = BestFile(saver=saver, identity="i")
    assert same_pictures.loss == 0.4
    other = BestFile(saver=saver, identity="j")
    other.offer(Measurement(step=6, loss=9.0))
    assert written[-1] == 6 and sorted(p.name for p in made.checkpoints_dir.iterdir()) == [
        "x-best-2.safetensors",
        "x-best.safetensors",
    ]
