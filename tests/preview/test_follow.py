"""A matrix that is filled while its run trains: rows as they are saved, turns on one device, and unchanged losses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest

from backend.config.schema import Config
from backend.memory.exclusive_device import offloaded
from backend.preview.carry_out import Studio, carry_out
from backend.preview.follow import Turns, follow
from backend.preview.worker import Ending, work_on
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CheckpointEvent
from backend.runs.folder import Run
from backend.runs.pause import Pause
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.request import (
    Cell,
    Follow,
    LoraUse,
    PreviewRequest,
    Row,
    settings_of_run,
    with_new_rows,
)
from backend.training import assembly
from backend.training.between_steps import BetweenSteps
from tests.conftest import draw_pictures
from tests.tiny.previews import PROMPT
from tests.tiny.silent_watch import Silent
from tests.tiny.training import config, events, lora_of, rows, train_here

SAVING = {"save_every_n_steps": 2, "save_precision": "fp32"}
VALIDATING = {"validate_every_n_steps": 2, "validation_sigmas": [0.5], "validation_repeats": 1}


def wait_for_the_preview(monkeypatch: pytest.MonkeyPatch, run: Run, drawn: list) -> None:
    """A step after each save, wait until the preview asks or has drawn: a tiny run is over in no time."""
    after_step = BetweenSteps.after_step

    def patient(self: BetweenSteps, ended: range) -> None:
        until = time.monotonic() + 30
        wanted = {3: 2, 5: 4}.get(self.position().step, 0)
        while len(drawn) < wanted and Pause(run).word() is None and time.monotonic() < until:
            time.sleep(0.01)
        after_step(self, ended)

    monkeypatch.setattr(BetweenSteps, "after_step", patient)


def request_of(run: Run) -> PreviewRequest:
    cfg = settings_of_run(run, {"compile.shape_mode": "off"})
    prompts = (PROMPT, PROMPT.model_copy(update={"seed": 9}))
    return PreviewRequest(config=cfg, rows=(), prompts=prompts, run=str(run.path), follow=Follow())


@pytest.fixture(scope="module")
def settings(tiny_flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Config]:
    """Settings of a short run that saves and measures every two steps, by the name of its files."""
    place = tmp_path_factory.mktemp("follow")
    images = draw_pictures(place / "images")

    def named(name: str) -> Config:
        more = {"saving": {**SAVING, "output_name": name}, "validation": VALIDATING}
        more |= {"dataset": {"validation_split": 0.5}, "training": {"max_train_steps": 6}}
        return config(tiny_flux, images, place, **more)

    return named


@pytest.fixture(scope="module")
def alone(settings: Callable[[str], Config]) -> Run:
    """That run without a preview."""
    return train_here(settings("alone"))[0]


@pytest.mark.parametrize("pauses", [True, False])
def test_each_checkpoint_becomes_a_row_and_the_run_computes_the_same(
    settings: Callable[[str], Config], alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: bool
) -> None:
    # as on a GPU: the weights go elsewhere while the run waits
    def leaving(inputs: assembly.Inputs, denoiser: object) -> object:
        return partial(offloaded, denoiser, inputs.device)

    monkeypatch.setattr(assembly, "leaving", leaving)
    run = Run.create(settings(f"followed-{pauses}"))
    request, drawn, seen = request_of(run), [], []
    out, studio = tmp_path / "out", Studio()

    def draw() -> None:
        def note(asked: PreviewRequest, cell: Cell) -> None:
            at_work = run.is_at_work()
            drawn.append((asked.rows[cell.row].step, run.status().phase if at_work else None, at_work))

        while not run.is_at_work():
            time.sleep(0.01)
        seen.append(follow(request, out, studio, Silent(), note, lambda _: None, pauses=pauses))

    if pauses:
        wait_for_the_preview(monkeypatch, run, drawn)
    thread = threading.Thread(target=draw)
    thread.start()
    train_here(settings(f"followed-{pauses}"), run)
    thread.join(120)
    (whole,) = seen
    assert [row.step for row in whole.rows] == [2, 4, 6] and len(drawn) == 6
    if pauses:
        assert drawn == [(2, "pause", True)] * 2 + [(4, "pause", True)] * 2 + [(6, None, False)] * 2
        assert [event["phase"] for event in events(run, "phase")].count("pause") == 2
    assert [row["loss"] for row in rows(run)] == [row["loss"] for row in rows(alone)]
    ours, theirs = lora_of(run, f"followed-{pauses}.safetensors"), lora_of(alone, "alone.safetensors")
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    studio.close()
    carry_out(whole, tmp_path / "after", Studio(), Silent())
    for cell in whole.cells():
        assert (out / cell.file).read_bytes() == (tmp_path / "after" / cell.file).read_bytes(), cell
    assert not Pause(run)._asked.exists() and not Pause(run)._answered.exists()


def test_the_worker_tells_of_the_rows_that_came_and_writes_their_matrix(alone: Run, tmp_path: Path) -> None:
    folder = PreviewFolder(tmp_path / "preview")
    folder.write_worker(state="ready")
    # one that save_last_n has removed by now is left out
    lost = Row(name="step 1", loras=(LoraUse(path=str(alone.checkpoints_dir / "lost.safetensors")),), step=1)
    identity = folder.submit(replace(request_of(alone), rows=(lost,)))
    assert folder.request(identity).rows == (lost,)
    ending = Ending(folder=folder, roots=[alone.path.parent], has_gpu=False)
    work_on(folder, identity, Studio(), ending)
    status = folder.status(identity)
    assert status["state"] == "done", status
    assert [row["step"] for row in status["rows"]] == [2, 4, 6] and len(status["pictures"]) == 6
    assert [note for note in status["notes"] if note.startswith("step 1 is left out")]
    assert {path.name for path in folder.matrix(identity)} >= {"grid.png", "index.html", "03-02.png"}


def test_a_run_waits_for_a_live_process_alone_and_a_stop_comes_first(tmp_path: Path) -> None:
    run = Run.create_empty(tmp_path, "x")
    asker, trainer = Pause(run), Pause(run)
    assert trainer.word() is None and not asker.is_answered()
    asker.ask()
    word = trainer.word()
    assert word is not None and not asker.is_answered()
    trainer.answer(word)
    assert asker.is_answered()
    asker.release()
    assert trainer.word() is None and not asker.is_answered()
    # an answer to somebody before counts for nobody else
    other = Pause(run)
    other.ask()
    assert not other.is_answered() and trainer.word() != word
    record = json.loads((run.control_dir / "pause").read_text())
    (run.control_dir / "pause").write_text(json.dumps({**record, "create_time": 1.0, "boot": "x", "ticks": 1}))
    assert trainer.word() is None
    Control(run).clear_all()
    assert not list(run.control_dir.iterdir())
    # the trainer is asked to stop while it waits: the preview lets go of the device, and asks for it no more
    states = iter([True, True, False, False, False])
    turns = Turns(run=Stopping(run, states), studio=Studio(), watch=Silent(), needed=True)
    turns._pause.ask()
    turns._held = True
    Control(run).request("stop")
    turns.take()
    assert not (run.control_dir / "pause").exists()


def test_a_run_that_starts_again_is_asked_again_and_what_others_ask_stays(tmp_path: Path) -> None:
    run = Run.create_empty(tmp_path, "x")
    trainer, other = Pause(run), Pause(run)

    class Answering(Silent):
        def advance(self) -> None:
            trainer.answer(trainer.word() or "")

    turns = Turns(run=Stopping(run, repeat(True)), studio=Studio(), watch=Answering(), needed=True)
    turns.take()
    Control(run).clear_all()
    turns.take()
    assert turns._pause.is_answered() and trainer.word() == turns._pause._word
    other.ask()
    turns.give_back()
    assert other.is_asked() and trainer.word() == other._word


def test_files_that_change_until_the_run_ends_become_rows_then(alone: Run, tmp_path: Path) -> None:
    run = Run.create_empty(tmp_path, "x")
    events = EventWriter(run)
    for name, step, role in (("a", 2, None), ("a-best", 2, "best"), ("a-average", 4, "average")):
        (run.checkpoints_dir / f"{name}.safetensors").write_bytes(b"")
        events.write(CheckpointEvent(step=step, file=f"checkpoints/{name}.safetensors", role=role))
    request = replace(request_of(alone), run=str(run.path))
    assert [row.name for row in with_new_rows(request, whole=False).rows] == ["step 2"]
    rows = with_new_rows(request, whole=True).rows
    assert [row.name for row in rows] == ["step 2, best", "step 2", "step 4, average"]
    # the loss measured at that step is another LoRA's
    assert rows[2].step is None


class Stopping(Run):
    """A run that is at work as often as told."""

    def __init__(self, run: Run, states: Iterator[bool]) -> None:
        super().__init__(run.path)
        self.states = states

    def is_at_work(self) -> bool:
        return next(self.states)
