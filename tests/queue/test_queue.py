"""The queue: entries in their order, real trainers one at a time, one that is killed and continued; the list's file."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from backend.config import toml_io
from backend.config.load import load, parse
from backend.config.schema import Config, with_values
from backend.plan.finish import earlier_runs
from backend.queue import changes, cli, process, view
from backend.queue.entries import Entry, Queue
from backend.queue.folder import QueueFolder
from backend.queue.worker import Worker
from backend.runs.errors import RunBusy, RunError
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.runs.process import ProcessId
from backend.runs.supervise import stop
from tests.gui.conftest import make_run
from tests.tiny.runs import eventually, save_state, set_fields


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[QueueFolder]:
    held = QueueFolder(tmp_path / "page" / "queue")
    yield held
    changes.set_on(held, False)
    for entry in held.read().entries:
        if entry.run is not None and Run(entry.run).path.is_dir():
            stop(Run(entry.run), grace_s=0)
    worker = held.process()
    if worker is not None and (left := worker.process()) is not None:
        left.kill()


def settings(tmp_path: Path, name: str, **more: dict) -> Config:
    """Settings that are whole; nothing of them is trained here unless `more` names a model."""
    data = {"saving": {"output_dir": str(tmp_path / "runs"), "output_name": name}}
    for section, values in more.items():
        data[section] = {**data.get(section, {}), **values}
    config = parse(data).config
    assert config is not None
    return config


def names(folder: QueueFolder) -> list[str]:
    return [entry.name for entry in folder.read().entries]


@pytest.mark.slow
def test_a_failed_run_stops_no_other_and_a_killed_one_is_continued(
    folder: QueueFolder, tmp_path: Path, tiny_flux: Path, image_folder: Path
) -> None:
    """Trainers of their own: the first has no image to train on, the second ends without a word."""
    from tests.tiny.training import config

    none = config(tiny_flux, tmp_path / "empty", tmp_path, saving={"output_name": "none"})
    long = config(
        tiny_flux, image_folder, tmp_path, training={"max_train_steps": 400}, saving={"save_every_n_steps": 3}
    )
    for each in (none, long):
        folder.add(each)
    ended = tmp_path / "ended.txt"
    words = f"import os; open({str(ended)!r}, 'a').write(os.environ['MONOTILE_STATE'] + os.environ['MONOTILE_WAITING'])"
    folder.set_command([sys.executable, "-c", words])
    changes.set_continue_ended(folder, True)
    changes.set_on(folder, True)
    process.see_to(folder, [tmp_path / "runs"])
    worker = folder.process()
    process.see_to(folder, [tmp_path / "runs"])
    assert folder.process() == worker, "the one that is there goes on"
    eventually(lambda: folder.read().entries[0].run, "the first is started")
    assert view.rows(folder, [])[1].state == "waiting", "one at a time"
    run = Run(str(eventually(lambda: folder.read().entries[1].run, "the second is started")))
    eventually(lambda: len(run.checkpoints()) > 1, "a state is saved")
    trainer = run.process()
    assert trainer is not None
    # a short rest: what is continued is the same run by the settings in its folder
    rest = config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": run.status().step + 3})
    toml_io.dump(rest, run.config_path)
    os.kill(trainer.pid, signal.SIGKILL)
    eventually(lambda: not process.is_needed(folder), "both have ended", 120)
    rows = view.rows(folder, [])
    assert [row.state for row in rows] == ["failed", "done"], [row.text for row in rows]
    assert folder.read().entries[1].run == str(run.path) and run.status().generation == 1, "continued, not begun again"
    eventually(lambda: not folder.is_alive(), "its process leaves")
    assert ended.read_text() == "failed1done0"


def test_an_earlier_run_of_the_same_settings_tells_how_long_it_takes(folder: QueueFolder, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", steps=40)
    with MetricsWriter(run, start_step=40) as metrics:
        for step in range(41, 51):
            metrics.add(step, loss=0.1, s_per_step=0.5)
    set_fields(run.record_path, started=1000.0, ended=1100.0, result={"step": 50})
    config = load(run.config_path).config
    assert config is not None
    longer = with_values(config, {"training.max_train_steps": 400, "saving.output_name": "other", "training.seed": 7})
    assert earlier_runs.expected_seconds(longer, [run]) == (100 - 50 * 0.5 + 400 * 0.5, run.name)
    slower = with_values(longer, {"dataset.batch_size": 2})
    assert earlier_runs.expected_seconds(slower, [run]) is None
    set_fields(run.record_path, generation=1)
    assert earlier_runs.expected_seconds(longer, [run]) is None, "made in two goes"


def test_entries_are_moved_skipped_and_taken_off(folder: QueueFolder, tmp_path: Path) -> None:
    a, b, c = (folder.add(settings(tmp_path, name)) for name in "abc")
    changes.move(folder, c.id, -1)
    assert names(folder) == ["a", "c", "b"]
    changes.move(folder, a.id, 5)
    assert names(folder) == ["c", "b", "a"]
    changes.run_now(folder, a.id)
    assert names(folder) == ["a", "c", "b"] and folder.read().on
    changes.set_on(folder, False)
    changes.skip(folder, c.id)
    changes.move(folder, b.id, -1)
    assert names(folder) == ["b", "c", "a"], "a skipped one keeps its place"
    with pytest.raises(RunBusy, match="does not wait"):
        changes.run_now(folder, c.id)
    changes.retry(folder, c.id)
    assert [entry.name for entry in folder.read().waiting()] == ["b", "c", "a"]
    changes.set_gpu(folder, b.id, "1")
    with pytest.raises(RunError, match="no number"):
        changes.set_gpu(folder, b.id, "1; rm")
    assert folder.config(b.id).config == settings(tmp_path, "b")
    removed = changes.remove(folder, b.id)
    assert names(folder) == ["c", "a"] and not folder.config_path(b.id).exists()
    changes.restore(folder, removed)
    assert names(folder) == ["b", "c", "a"] and folder.config(b.id).config == settings(tmp_path, "b")
    changes.remove(folder, b.id)
    with pytest.raises(RunError, match="no longer in the queue"):
        changes.retry(folder, b.id)


def test_runs_at_work_are_left_alone_and_ended_ones_can_be_tried_again(folder: QueueFolder, tmp_path: Path) -> None:
    entry = folder.add(settings(tmp_path, "fox"))
    run = make_run(tmp_path / "runs", steps=4)
    folder.update(lambda queue: queue.changed(entry.id, lambda known: replace(known, phase="ended", run=str(run.path))))
    with pytest.raises(RunError, match="has finished"):
        changes.retry(folder, entry.id)
    set_fields(run.record_path, state="failed")
    save_state(run, 4)
    changes.retry(folder, entry.id)
    (again,) = folder.read().entries
    assert (again.phase, again.resume, again.run) == ("waiting", True, str(run.path))
    assert "saved state" in view.rows(folder, [])[0].text
    # a process of this machine works on it
    set_fields(run.record_path, state=None, start="word", **ProcessId.of(os.getpid()).to_record())
    folder.update(lambda queue: queue.changed(entry.id, lambda known: replace(known, phase="started")))
    for refused in (changes.remove, changes.retry):
        with pytest.raises(RunBusy):
            refused(folder, entry.id)
    # nothing else is started beside it, on whatever GPU of the same kind
    folder.add(settings(tmp_path, "hare"))
    changes.set_on(folder, True)
    Worker(folder=folder, roots=[]).look()
    assert [entry.phase for entry in folder.read().entries] == ["started", "waiting"]
    set_fields(run.record_path, state="done", pid=None)  # what is left of the queue is stopped


def test_ended_ones_are_removed_also_while_their_process_leaves(folder: QueueFolder, tmp_path: Path) -> None:
    """The page tells a run's end some seconds before the worker notes it; what is about to start again stays."""
    ended, again, skipped = (folder.add(settings(tmp_path, name)) for name in "abc")
    run = make_run(tmp_path / "runs", steps=4)
    set_fields(run.record_path, start="word")
    for entry, before in ((ended, None), (again, "word")):
        begun = {"phase": "started", "run": str(run.path), "before": before}
        folder.update(lambda queue, i=entry.id, f=begun: queue.changed(i, lambda known: replace(known, **f)))
    changes.skip(folder, skipped.id)
    changes.remove_ended(folder)
    assert names(folder) == ["b"], "its resume begins"
    folder.update(lambda queue: queue.changed(again.id, lambda known: replace(known, before=None)))
    set_fields(run.record_path, state=None, **ProcessId.of(os.getpid()).to_record())
    changes.remove_ended(folder)
    assert names(folder) == ["b"], "it is at work"
    set_fields(run.record_path, state="done", pid=None)
    changes.remove_ended(folder)
    assert names(folder) == []


def test_the_end_of_an_entry_that_was_taken_off_is_told_beside_the_queue(folder: QueueFolder, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    folder.set_command(["sh", "-c", f"echo $MONOTILE_RUN $MONOTILE_STATE >> {notes}; sleep 60"])
    run, worker = make_run(tmp_path / "runs", steps=4), Worker(folder=folder, roots=[])
    worker.notices.longest_s = 0.5
    entry = folder.add(settings(tmp_path, "a"))
    set_fields(run.record_path, start="word", state="done", pid=None)

    def start() -> None:
        begun = {"phase": "started", "run": str(run.path)}
        folder.update(lambda queue: queue.changed(entry.id, lambda known: replace(known, **begun)))

    start()
    removed = changes.remove(folder, entry.id)
    assert names(folder) == [] and process.is_needed(folder), "its end was not told yet"
    changes.restore(folder, removed)
    assert folder.read().entries[0].phase == "started" and not folder.read().leaving
    changes.remove_ended(folder)
    assert Queue.from_json(folder.read().to_json()) == folder.read() and len(folder.read().leaving) == 1
    began = time.monotonic()
    worker.look()
    assert time.monotonic() - began < 0.5 and not process.is_needed(folder), "nothing waits for the command"
    changes.restore(folder, removed)
    assert folder.read().entries[0].phase == "ended", "told already"
    eventually(notes.exists, "the command runs")
    assert worker.notices.look(), "the worker stays for it"
    eventually(lambda: not worker.notices.look(), "it is ended")
    worker.look()
    assert notes.read_text() == f"{run.name} done\n"


@pytest.mark.parametrize("kind", ["disk_full", "not_writable", "cuda_oom"])
def test_what_every_next_run_would_meet_pauses_the_queue(kind: str, folder: QueueFolder, tmp_path: Path) -> None:
    first, _ = (folder.add(settings(tmp_path, name)) for name in "ab")
    changes.set_on(folder, True)
    run = make_run(tmp_path / "runs", steps=4)
    set_fields(run.record_path, start="word", state="failed", pid=None, error={"text": "No.", "kind": kind})
    begun = {"phase": "started", "run": str(run.path)}
    folder.update(lambda queue: queue.changed(first.id, lambda known: replace(known, **begun)))
    worker = Worker(folder=folder, roots=[])
    worker._follow(folder.read().entries[0])
    queue = folder.read()
    assert [entry.phase for entry in queue.entries] == ["ended", "waiting"] and queue.on == (kind == "cuda_oom")
    if queue.on:
        return
    assert queue.paused_by.startswith(f"{run.name} failed because ") and "start the queue" in queue.paused_by
    worker.look()
    assert folder.read() == queue, "nothing is started"
    console = Console(file=io.StringIO(), width=200, highlight=False)
    cli.main(["--data", str(tmp_path)], console)
    assert f"The queue has paused itself. {queue.paused_by}" in console.file.getvalue()
    changes.set_on(folder, True)
    assert not folder.read().paused_by


def test_a_folder_that_can_not_be_made_pauses_the_queue(
    folder: QueueFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, gpu in (("a", "0"), ("b", "1")):
        folder.add(settings(tmp_path, name), gpu)
    changes.set_on(folder, True)
    make = Path.mkdir

    def refused(path: Path, *rest: object, **more: object) -> None:
        if path.parent == tmp_path / "runs":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        make(path, *rest, **more)

    monkeypatch.setattr(Path, "mkdir", refused)
    Worker(folder=folder, roots=[]).look()
    queue = folder.read()
    assert [entry.phase for entry in queue.entries] == ["ended", "waiting"] and not queue.on
    assert "the disk can only be read" in queue.paused_by


def test_times_follow_from_those_before(folder: QueueFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, gpu in (("a", "0"), ("b", "0"), ("c", "1"), ("d", None)):
        folder.add(settings(tmp_path, name, training={"max_train_steps": 100}), gpu)
    monkeypatch.setattr(view, "expected_seconds", lambda config, runs: (60.0, "earlier"))
    times = [(row.begins, row.ends) for row in view.rows(folder, [], now=1000.0)]
    assert times == [(1000.0, 1060.0), (1060.0, 1120.0), (1000.0, 1060.0), (1120.0, 1180.0)]
    monkeypatch.setattr(view, "expected_seconds", lambda config, runs: None)
    times = [(row.begins, row.ends) for row in view.rows(folder, [], now=1000.0)]
    assert times == [(1000.0, None), (None, None), (1000.0, None), (None, None)]


def test_a_list_that_is_damaged_is_kept_and_begun_again(folder: QueueFolder, tmp_path: Path) -> None:
    folder.add(settings(tmp_path, "a"))
    content = json.loads(folder.queue_path.read_text())
    content["entries"] += [7, {"id": "../../x", "phase": "waiting"}, {"id": "20260101-000000-abcdef", "phase": "?"}]
    folder.queue_path.write_text(json.dumps(content))
    assert names(folder) == ["a"]
    folder.queue_path.write_bytes(b"\x00half")
    assert folder.read() == Queue()
    folder.add(settings(tmp_path, "b"))
    assert names(folder) == ["b"]
    (kept,) = folder.path.glob("queue-unreadable-*.json")
    assert kept.read_bytes() == b"\x00half"
    with pytest.raises(ValueError, match="no entry"):
        folder.config_path("../../x")


def test_a_start_that_was_cut_off_is_made_again(folder: QueueFolder, tmp_path: Path) -> None:
    entry = folder.add(settings(tmp_path, "a"))
    run = Run.create(settings(tmp_path, "a"))
    folder.update(
        lambda queue: queue.changed(entry.id, lambda known: replace(known, phase="started", run=str(run.path)))
    )
    Worker(folder=folder, roots=[]).look()
    (again,) = folder.read().entries
    assert (again.phase, again.run) == ("waiting", str(run.path)), "the same folder, since nothing was trained in it"


def test_what_never_comes_further_is_continued_three_times(folder: QueueFolder, tmp_path: Path) -> None:
    entry = folder.add(settings(tmp_path, "a"))
    run = make_run(tmp_path / "runs", steps=4)
    set_fields(run.record_path, start="word", state="dead")
    save_state(run, 4)

    def end_again() -> Entry:
        path = str(run.path)
        folder.update(lambda queue: queue.changed(entry.id, lambda known: replace(known, phase="started", run=path)))
        Worker(folder=folder, roots=[]).look()
        return folder.read().entries[0]

    assert end_again().phase == "ended", "left as it is unless asked"
    changes.set_continue_ended(folder, True)
    assert [end_again().phase for _ in range(4)] == ["waiting"] * 3 + ["ended"]
    save_state(run, 8)
    assert end_again().phase == "waiting", "it came further"


def test_the_terminal_says_what_it_does(tmp_path: Path, tiny_flux: Path, image_folder: Path) -> None:
    from tests.tiny.training import config

    path = tmp_path / "fox.toml"
    toml_io.dump(config(tiny_flux, image_folder, tmp_path, saving={"output_name": "fox"}), path)

    def answer_of(*words: str) -> tuple[int, str]:
        console = Console(file=io.StringIO(), width=200, highlight=False)
        return cli.main(["--data", str(tmp_path), *words], console), console.file.getvalue()

    assert "empty" in answer_of()[1]
    code, text = answer_of("add", str(path), str(path), "--gpu", "0")
    assert code == 0 and text.count("Added fox") == 2
    assert answer_of("skip", "fox")[0] == 2, "two have that name"
    rows = json.loads(answer_of("--json")[1])["entries"]
    code, text = answer_of("skip", rows[1]["id"][-6:])
    assert code == 0 and "skipped" in text and "paused" in text
    assert answer_of("up", "nothing")[0] == 2
    bad = tmp_path / "bad.toml"
    toml_io.dump(config(tiny_flux, tmp_path / "nowhere", tmp_path), bad)
    code, text = answer_of("add", str(bad))
    assert code == 1 and "there is no folder" in text
    assert answer_of("clear")[0] == 0 and len(json.loads(answer_of("--json")[1])["entries"]) == 1
    assert "MONOTILE_STATE" in answer_of("notify", "mail", "-s", "done")[1]
    assert QueueFolder.of_page(tmp_path / "page").command() == ["mail", "-s", "done"]


def test_nothing_is_started_that_was_changed_meanwhile(folder: QueueFolder, tmp_path: Path) -> None:
    """A process looks at the list, and a person changes it before the run begins: the wish of the person counts."""
    changes.set_on(folder, True)
    skipped, moved, paused = (folder.add(settings(tmp_path, name)) for name in "abc")
    worker = Worker(folder=folder, roots=[])
    changes.skip(folder, skipped.id)
    worker._start(skipped)
    changes.set_gpu(folder, moved.id, "1")
    worker._start(moved)
    changes.set_on(folder, False)
    worker._start(paused)
    assert [entry.phase for entry in folder.read().entries] == ["skipped", "waiting", "waiting"]
    assert not list((tmp_path / "runs").glob("*")), "no folder of a run is left"


def test_a_run_that_a_person_resumed_is_not_started_again(folder: QueueFolder, tmp_path: Path) -> None:
    entry = folder.add(settings(tmp_path, "a"))
    run = make_run(tmp_path / "runs", steps=4)
    save_state(run, 4)
    waits = {"phase": "waiting", "run": str(run.path), "resume": True}
    folder.update(lambda queue: queue.changed(entry.id, lambda known: replace(known, **waits)))
    changes.set_on(folder, True)
    here = ProcessId.of(os.getpid()).to_record()
    set_fields(run.record_path, state=None, start="by hand", **here)
    worker = Worker(folder=folder, roots=[])
    worker.look()
    assert folder.read().entries[0].phase == "started", "it is at work already"
    worker.look()
    assert folder.read().entries[0].phase == "started", "and it is followed"
    folder.update(lambda queue: queue.changed(entry.id, lambda known: replace(known, **waits)))
    set_fields(run.record_path, state="done", pid=None)
    before = run.record()
    worker.look()
    assert folder.read().entries[0].phase == "ended" and run.record() == before, "it has finished"


def test_what_can_not_be_started_says_why(folder: QueueFolder, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder of the runs should be")
    entry = folder.add(settings(tmp_path, "a"))
    changes.set_on(folder, True)
    Worker(folder=folder, roots=[]).look()
    (row,) = view.rows(folder, [])
    assert row.state == "failed" and "can't be created" in row.text
    changes.retry(folder, entry.id)
    assert view.rows(folder, [])[0].text == "Waiting."
