"""What happens to a run from outside while it trains: killed, paused, its files taken away. Nothing goes silently."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import threading
import time

import pytest

from backend.base.errors import WriteFailed
from backend.runs import metrics_file, supervise
from backend.runs.events import EventWriter
from backend.runs.events.kinds import PhaseEvent, StateEvent
from backend.runs.hang import HangDetector
from backend.runs.metrics import MetricsReader, MetricsWriter
from backend.runs.status_reader import StatusReader
from tests.tiny.event_lines import event_lines
from tests.tiny.runs import eventually, save_state, set_fields, start

LONG = 1_000_000


def training(run, step=3):
    start("trainer", run, LONG, 0.002)
    eventually(lambda: run.status().step >= step and run.status().state == "running", "it trains")
    return run.process().pid


def warnings(run):
    return [event["text"] for event in event_lines(run, "warning")]


def test_killed_at_any_moment_it_is_told_truly_and_goes_on(run):
    dice = random.Random(7)
    for cycle in range(4):
        start("trainer", run, LONG, 0.002)
        eventually(lambda: run.process(), "it has a process")
        time.sleep(dice.uniform(0.0, 1.2))
        os.kill(run.process().pid, signal.SIGKILL)
        status = eventually(lambda: None if run.is_at_work() else run.status(), "it is gone")
        assert status.state in ("dead", "failed") and status.error.text, (cycle, status)
        assert status.resumable == (status.state_step is not None)
        eventually(lambda: "exit_code" in run.record() and run.record().get("state"), "its end is written down")
    start("trainer", run, (status.state_step or 0) + 15, 0.0)
    eventually(lambda: run.status().state == "done", "it goes on to its end")
    rows = MetricsReader(run).tail(LONG)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    # the exit code may be on its way into the record at this moment; what stays was left by a killed writer
    eventually(lambda: not list(run.path.rglob("*.part")), "no temporary file is left")


def test_a_folder_deleted_under_a_run_is_made_again_with_its_records(run):
    training(run, 25)
    before = run.record()
    gone = run.path.rename(run.path.with_name("gone"))  # at one blow, as a file manager's trash does
    shutil.rmtree(gone)
    eventually(lambda: any("made again" in text for text in warnings(run)), "the folder is there again")
    count = eventually(lambda: MetricsReader(run).count(), "the metrics are there again")
    eventually(lambda: run.status().state_step, "it saves into the new folder")
    assert run.record()["start"] == before["start"] and run.record()["created"] == before["created"]
    assert "training on cpu" in run.log_path.read_text()
    status = run.status()
    assert (status.state, status.total_steps) == ("running", LONG) and status.resumable is False
    rows = MetricsReader(run).tail(LONG)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= count
    assert supervise.stop(run, say=lambda _: None).how == "asked"
    assert run.status().state == "stopped" and run.status().resumable


def test_metrics_removed_or_replaced_under_a_run_are_told_and_written_again(run):
    training(run, 20)
    run.metrics_path.unlink()
    eventually(lambda: len(warnings(run)) == 1, "it is told")
    other = sqlite3.connect(run.path / "other")
    other.execute("CREATE TABLE mine (a)")
    other.close()
    (run.path / "other").replace(run.metrics_path)
    eventually(lambda: len(warnings(run)) == 2, "it is told again")
    supervise.stop(run, say=lambda _: None)
    assert all("removed while the run was writing" in text for text in warnings(run))
    rows = MetricsReader(run).tail(LONG)
    assert [row["step"] for row in rows] == list(range(1, run.status().step + 1))
    assert (run.path / "metrics-replaced.sqlite").exists()  # what somebody put there is not thrown away


def test_a_paused_trainer_does_not_look_healthy(run):
    pid = training(run)
    os.kill(pid, signal.SIGSTOP)
    status = eventually(lambda: (s := run.status()).hang and s, "the pause is seen")
    assert status.state == "running" and f"kill -CONT {pid}" in status.hang.remedy and status.hang.text in status.text
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: run.status().hang is None, "it goes on")
    os.kill(pid, signal.SIGSTOP)
    ladder = (("INT", 0.2), ("TERM", 0.2), ("KILL", 30.0))
    assert supervise.stop(run, grace_s=0.2, ladder=ladder, say=lambda _: None).how == "KILL"
    assert run.status().state == "stopped"


def test_no_sign_for_many_steps_is_told_and_a_clock_that_jumps_is_not(run, monkeypatch):
    monkeypatch.setenv("MONOTILE_RUN", "")
    run.attach()
    EventWriter(run).write(PhaseEvent(phase="train", done=0))
    with MetricsWriter(run) as writer:
        for step in range(1, 20):
            writer.add(step, s_per_step=2.0)
    reader = StatusReader(run)
    assert reader.read().hang is None
    stamps = [path for path in (run.metrics_path, run.events_path) if path.exists()]
    for path in stamps:
        os.utime(path, (time.time() - 400, time.time() - 400))
    seen = StatusReader(run).read()
    assert "given no sign for 6 min 40 s; a step usually takes 2.0 s" in seen.text
    assert seen.state == "running" and "press Stop, then resume" in seen.hang.remedy

    real = time.time
    watched = HangDetector(run)
    watched.seconds()
    os.utime(run.events_path)
    watched.seconds()
    monkeypatch.setattr(time, "time", lambda: real() + 86400)
    assert watched.seconds() < 60  # a day ahead by the wall's clock, a moment by its own
    assert StatusReader(run).read().state == "running"
    monkeypatch.setattr(time, "time", lambda: real() - 86400)
    assert StatusReader(run).read().hang is None


def test_metrics_held_at_the_start_are_waited_for_and_named(run):
    MetricsWriter(run).close()
    holder = sqlite3.connect(run.metrics_path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    messages = []
    timer = threading.Timer(0.5, holder.execute, ("ROLLBACK",))
    timer.start()
    with MetricsWriter(run, generation=1, tell=lambda *words: messages.append(words)) as writer:
        writer.add(1, loss=1.0)
    timer.join()
    assert MetricsReader(run).count() == 1
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(WriteFailed, match="in use by another program. Close the program that has it open"):
        MetricsWriter(run, generation=2, tell=lambda *words: messages.append(words), wait_s=0.1)
    holder.close()
    assert messages and "in use by another program" in messages[-1][0] and "waits" in messages[-1][1]


def damage_the_middle(path):
    """Overwrite pages in the middle of the table, as a bad sector does."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with open(path, "r+b") as stream:
        pages = stream.seek(0, os.SEEK_END) // size
        for page in range(pages // 2, pages // 2 + 3):
            stream.seek(page * size)
            stream.write(b"\xa5" * size)


def test_damage_in_the_middle_is_noticed_and_costs_only_itself(run):
    with MetricsWriter(run) as writer:
        for step in range(1, 3001):
            writer.add(step, loss=float(step))
    damage_the_middle(run.metrics_path)
    messages = []
    with MetricsWriter(run, generation=1, start_step=2990, tell=lambda *words: messages.append(words)) as writer:
        writer.add(2991, loss=2991.0)
    rows = MetricsReader(run).tail(LONG)
    assert 2500 < len(rows) < 2991 and all(row["loss"] == row["step"] for row in rows)
    assert (rows[0]["step"], rows[-1]["step"], rows[-1]["generation"]) == (1, 2991, 1)
    (words,) = messages
    assert "was damaged" in words[0] and "are kept" in words[0] and "metrics-broken-" in words[1]
    assert len(list(run.path.glob("metrics-broken-*.sqlite"))) == 1


def test_damage_during_a_run_is_repaired_while_it_goes_on(run):
    messages = []
    with MetricsWriter(run, commit_every_s=0.01, tell=lambda *words: messages.append(words)) as writer:
        for step in range(1, 3001):
            writer.add(step, loss=float(step))
        assert writer.flush()
        with sqlite3.connect(run.metrics_path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with open(run.metrics_path, "r+b") as stream:
            stream.write(b"no database any more" * 50)
        writer.add(3001, loss=3001.0)
        eventually(lambda: messages, "it is told")
        assert writer.flush(30)
    assert "was damaged" in messages[0][0]
    assert MetricsReader(run).last()["step"] == 3001


def test_a_reader_gives_what_can_be_read(run, caplog):
    with MetricsWriter(run) as writer:
        for step in range(1, 3001):
            writer.add(step, loss=float(step))
    damage_the_middle(run.metrics_path)
    reader = MetricsReader(run)
    assert reader.last()["step"] == 3000
    for _ in range(5):
        assert 0 < len(reader.tail(LONG)) < 3000
    assert caplog.text.count("can't be read as a whole") == 1


def test_a_resumed_run_that_is_stopped_while_it_loads_stands_where_it_was_saved(run):
    save_state(run, 40)
    (run.state_dir / f".step-00000050.{os.getpid()}-0123abcd.part").mkdir()
    EventWriter(run).write(StateEvent(step=30))  # the newer one's event did not get out
    run.prepare_start(["x"])
    set_fields(run.record_path, starter=None, started=1.0)
    status = run.status()
    assert (status.state, status.step, status.state_step, status.resumable) == ("dead", 40, 40, True)
    shutil.rmtree(run.state_dir / "step-00000040")
    status = run.status()
    assert (status.step, status.state_step, status.resumable) == (0, None, False)


def test_tables_of_other_programs_are_no_metrics(run):
    with sqlite3.connect(run.metrics_path) as connection:
        connection.execute("CREATE TABLE steps (a TEXT)")
    assert MetricsReader(run).tail(5) == []
    assert metrics_file.COLUMNS
