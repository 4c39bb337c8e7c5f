"""Trainers outlive who started them, stop for certain, and leave true records (cases R1 to R4, R6, R8 to R10)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from backend.runs import recovery, supervise
from backend.runs.control import Control
from backend.runs.errors import RunBusy, RunError
from backend.runs.folder import Run, list_runs
from backend.runs.metrics import MetricsReader
from backend.runs.process import MARKER, ProcessId, Tree
from tests.tiny.event_lines import event_lines
from tests.tiny.runs import ROOT, eventually, set_fields, start, toy

QUICK = (("INT", 0.3), ("TERM", 0.3), ("KILL", 30.0))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ended(run: Run):
    """The final status, once the process is gone and its end is written down."""
    known = {"exit_code", "state"}
    return eventually(lambda: not run.is_alive() and known <= run.record().keys() and run.status(), f"{run} ends")


def test_a_run_goes_its_way_to_the_end(run):
    start("trainer", run, 25, 0.001)
    status = ended(run)
    assert (status.state, status.step, status.total_steps, status.exit_code) == ("done", 25, 25, 0)
    assert status.text.startswith("Done: 25 steps in ")
    assert status.result["lora"].endswith("toy-000020.safetensors")
    assert "training on cpu" in run.log_path.read_text()
    assert MetricsReader(run).count() == 25


def test_stop_asks_first_and_the_trainer_saves(run):
    start("trainer", run, 100_000, 0.005)
    eventually(lambda: run.status().step > 3, "it trains")
    result = supervise.stop(run, say=lambda _: None)
    assert (result.how, result.survivors) == ("asked", ()) and result.stopped
    status = ended(run)
    assert status.state == "stopped" and status.resumable
    assert status.state_step == status.step and (run.state_dir / f"step-{status.step:08d}").is_dir()
    assert f"It can be resumed from step {status.step}." in status.text
    assert Control(run).pending() == set()


def test_r1_a_trainer_that_hears_nothing_is_ended_with_all_its_helpers(run):
    start("stubborn", run)
    eventually((run.path / "pids").exists, "the helpers are there")
    pids = [int(word) for word in (run.path / "pids").read_text().split()]
    assert all(map(alive, pids)) and os.getsid(pids[1]) == pids[0] and os.getsid(pids[2]) == pids[2]
    lines = []
    result = supervise.stop(run, grace_s=0.2, ladder=QUICK, say=lines.append)
    assert result.how == "KILL" and result.survivors == ()
    assert not any(map(alive, pids))
    assert [word for line in lines for word in ("INT", "TERM", "KILL") if word in line] == ["INT", "TERM", "KILL"]
    assert "ended (KILL)" in result.sentence()
    # It was ended on purpose: that is no crash, and stays so after the exit code arrives.
    assert run.status().state == "stopped"
    assert ended(run).state == "stopped" and run.record()["exit_code"] == -signal.SIGKILL


def test_r1_helpers_of_a_trainer_that_died_are_ended_too(run):
    start("stubborn", run)
    eventually((run.path / "pids").exists, "the helpers are there")
    leader, near, far = (int(word) for word in (run.path / "pids").read_text().split())
    os.kill(leader, signal.SIGKILL)
    eventually(lambda: not alive(leader), "the trainer is gone")
    result = supervise.stop(run, ladder=QUICK, say=lambda _: None)
    assert result.survivors == () and not alive(near) and not alive(far)


def test_nobody_else_is_ended(run):
    """A process that only shares this session, or a run whose name begins alike, is none of the run's."""
    other = Run(str(run.path) + "-2")
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, MARKER: str(other.path)}
    )
    try:
        start("trainer", run, 100_000, 0.005)
        eventually(lambda: run.status().step > 1, "it trains")
        assert bystander.pid not in {p.pid for p in Tree(run.process(), str(run.path), run.record()["start"]).alive()}
        supervise.stop(run, grace_s=0, ladder=QUICK, say=lambda _: None)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_stop_of_a_run_that_does_not_run(run):
    result = supervise.stop(run)
    assert (result.how, result.stopped) == ("not running", True) and "was not running" in result.sentence()


def test_stop_in_the_background_is_one_thread_a_run(run):
    start("trainer", run, 100_000, 0.005)
    eventually(lambda: run.status().step > 1, "it trains")
    first, second = supervise.stop_in_background(run), supervise.stop_in_background(run)
    assert first is second
    first.join(60)
    assert run.status().state == "stopped"


def test_stopping_is_seen_from_the_folder(run):
    start("stubborn", run)
    eventually((run.path / "pids").exists, "it runs")
    Control(run).request("stop")
    status = run.status()
    assert status.state == "stopping" and status.eta_s is None and "saves first" in status.text


def dead_pid() -> int:
    return next(pid for pid in range(2**22, 2, -1) if not psutil.pid_exists(pid))


def test_r2_after_a_power_cut_the_records_are_put_right(run, runs_root):
    set_fields(run.record_path, started=time.time() - 5000, pid=dead_pid(), create_time=time.time() - 5000)
    Control(run).request("stop")
    (run.state_dir / f".weights.{dead_pid()}-0123abcd.part").touch()
    (changed,) = recovery.reconcile(runs_root)
    assert (changed.name, changed.state) == (run.name, "dead")
    assert changed.error.text and "switched off" in changed.error.cause and "Resume" in changed.error.remedy
    assert run.record()["state"] == "dead" and Control(run).pending() == set()
    assert list(run.state_dir.iterdir()) == []
    assert recovery.reconcile(runs_root) == []  # once is enough


def test_r2_it_ended_when_it_last_wrote_something(run, runs_root):
    begun = time.time() - 5000
    set_fields(run.record_path, started=begun, pid=dead_pid(), create_time=begun)
    run.log_path.write_text("step 5\n")
    os.utime(run.log_path, (begun + 60, begun + 60))
    (changed,) = recovery.reconcile(runs_root)
    assert changed.ended == pytest.approx(begun + 60) and changed.elapsed_s == pytest.approx(60)


def test_a_run_that_can_not_be_written_keeps_nothing_from_opening(run, runs_root, caplog):
    set_fields(run.record_path, started=1.0, pid=dead_pid(), create_time=1.0)
    lock = run.path / "run.json.lock"
    lock.unlink()
    lock.mkdir()  # so that the record can't be changed, for root neither
    other = Run.create_empty(runs_root, "other")
    set_fields(other.record_path, started=1.0, pid=dead_pid(), create_time=1.0)
    assert [status.name for status in recovery.reconcile(runs_root)] == [other.name]
    assert run.name in caplog.text and run.status().state == "dead"


def test_a_run_whose_folder_is_gone_is_not_started(run):
    gone = Run(str(run.path) + "-gone")
    with pytest.raises(RunError, match="does not exist any more"):
        supervise.start(None, gone, command=["true"])


def test_r2_a_pid_that_belongs_to_somebody_else_now_is_not_the_trainer(run, runs_root):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        own = ProcessId.of(stranger.pid)
        for earlier in (
            {"pid": own.pid, "create_time": own.create_time - 3600},  # as other systems know it
            {**own.to_record(), "boot": "an-earlier-boot"},
            {**own.to_record(), "ticks": (own.ticks or 0) - 1},
        ):
            set_fields(run.record_path, started=1.0, state=None, **{"boot": None, "ticks": None, **earlier})
            assert not run.is_alive()
        assert [status.state for status in recovery.reconcile(runs_root)] == ["dead"]
        supervise.stop(run, grace_s=0, ladder=QUICK)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_r2_living_runs_are_left_alone(run, runs_root):
    start("trainer", run, 100_000, 0.005)
    eventually(lambda: run.status().step > 1, "it trains")
    assert recovery.reconcile(runs_root) == []
    assert run.status().state == "running"


def test_what_a_dead_trainer_left_behind_is_ended_at_the_next_start(run, runs_root):
    start("stubborn", run)
    eventually((run.path / "pids").exists, "the helpers are there")
    leader, near, far = (int(word) for word in (run.path / "pids").read_text().split())
    set_fields(run.record_path, started=time.time() - 1000)
    os.kill(leader, signal.SIGKILL)
    eventually(lambda: not alive(leader), "the trainer is gone")
    recovery.reconcile(runs_root)
    assert not alive(near) and not alive(far)


def test_r3_r4_the_run_outlives_the_page_and_is_found_again(runs_root):
    """The page's process starts a run and is killed with its group; another process sees, follows and stops it."""
    page = textwrap.dedent("""
        import os, sys, time
        from backend.runs import supervise
        from backend.runs.folder import Run
        run = Run.create_empty(sys.argv[1], "survivor")
        supervise.start(None, run, command=[sys.executable, sys.argv[2], str(run.path), "100000", "0.005"],
                        environment={"PYTHONPATH": sys.argv[3]})
        print(run.name, flush=True)
        time.sleep(600)
    """)
    trainer = str(ROOT / "tests/runs/toys/trainer.py")
    server = subprocess.Popen(
        [sys.executable, "-c", page, str(runs_root), trainer, str(ROOT)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    name = server.stdout.readline().strip()
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    server.stdout.close()

    (run,) = list_runs(runs_root)
    assert run.name == name
    before = eventually(lambda: run.status().step, "it trains on")
    eventually(lambda: run.status().step > before + 5, "it goes on training without its page")
    assert run.status().state == "running" and recovery.reconcile(runs_root) == []
    rows = MetricsReader(run).tail(10**6)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))  # nothing was lost
    assert supervise.stop(run, say=lambda _: None).how == "asked"
    assert run.status().state == "stopped"


def test_r6_a_resume_goes_on_counting_and_overwrites_nothing(run):
    start("trainer", run, 45, 0.001, "die=kill37")
    assert ended(run).state == "failed"
    before = {path.name: path.read_text() for path in run.checkpoints_dir.iterdir()}
    assert len(before) == 3
    start("trainer", run, 45, 0.001)
    status = ended(run)
    assert (status.state, status.step, status.total_steps, status.generation) == ("done", 45, 45, 1)
    rows = MetricsReader(run).tail(100)
    assert [row["step"] for row in rows] == list(range(1, 46))
    assert [row["generation"] for row in rows] == [0] * 30 + [1] * 15
    after = {path.name: path.read_text() for path in run.checkpoints_dir.iterdir()}
    assert before.items() <= after.items() and len(after) == 4
    (resumed,) = event_lines(run, "resumed")
    assert (resumed["step"], resumed["generation"]) == (30, 1)


def test_r8_a_process_a_run(runs_root):
    runs = [Run.create_empty(runs_root, "twin") for _ in range(2)]
    for run in runs:
        start("trainer", run, 100_000, 0.005)
    eventually(lambda: all(run.status().step > 1 for run in runs), "both train")
    first, second = (run.process() for run in runs)
    assert first.pid != second.pid
    supervise.stop(runs[0], say=lambda _: None)
    words = [run.record()["start"] for run in runs]
    assert Tree(first, str(runs[0].path), words[0]).alive() == [] and runs[1].status().state == "running"
    supervise.stop(runs[1], say=lambda _: None)
    assert Tree(second, str(runs[1].path), words[1]).alive() == []


def test_a_run_that_is_being_trained_is_not_started_twice(run):
    start("trainer", run, 100_000, 0.005)
    with pytest.raises(RunBusy, match="already being trained"):
        start("trainer", run, 5, 0.001)
    eventually(lambda: run.status().step > 1, "the first one is unharmed")


def test_a_resume_right_after_a_stop_waits_for_the_old_process_to_leave(run):
    code = "import sys, time; time.sleep(float(sys.argv[1]))"
    supervise.start(None, run, command=[sys.executable, "-c", code, "1.5"])
    first = run.process()
    run.finish("stopped", step=3)
    assert run.status().state == "stopped" and first.is_alive()
    supervise.start(None, run, resume=True, command=[sys.executable, "-c", code, "0"])
    assert not first.is_alive() and run.record()["pid"] != first.pid


def test_r9_settings_that_a_machine_remembers_do_not_reach_a_run(run, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    monkeypatch.setenv("KEPT", "yes")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    supervise.start(None, run, command=[sys.executable, "-c", code])
    ended(run)
    environment = json.loads(run.log_path.read_text())
    assert "ACCELERATE_MIXED_PRECISION" not in environment
    assert environment["KEPT"] == "yes" and environment[MARKER] == str(run.path)
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_r10_an_error_is_explained_where_the_run_is_shown(run):
    start("trainer", run, 50, 0.001, "die=raise4")
    status = ended(run)
    assert (status.state, status.step, status.exit_code) == ("failed", 4, 1)
    assert (
        status.error.text == "The GPU ran out of memory: 2.00 GiB more were needed, 11.06 MiB of 23.65 GiB were free."
    )
    assert "VRAM" in status.error.cause and "gradient_checkpointing" in status.error.remedy
    assert status.error.exception.startswith("RuntimeError: CUDA out of memory")
    assert status.error.text in status.text


def test_r10_a_trainer_that_dies_at_start_is_explained_from_its_log(run):
    supervise.start(None, run, command=[sys.executable, "-c", "import no_such_package"])
    status = ended(run)
    assert (status.state, status.exit_code) == ("failed", 1)
    assert status.error.text == "The Python package no_such_package is missing."
    assert status.error.exception == "ModuleNotFoundError: No module named 'no_such_package'"
    assert run.record()["error"]["remedy"] == status.error.remedy  # for whoever looks when the log is gone


def test_r10_a_kill_from_outside_is_told_from_an_error(run):
    start("trainer", run, 50, 0.001, "die=kill7")
    status = ended(run)
    assert (status.state, status.exit_code) == ("failed", -9)
    assert "RAM" in status.error.cause and status.error.exception is None


def test_an_earlier_failure_is_not_told_of_a_later_start(run):
    start("trainer", run, 50, 0.001, "die=raise4")
    assert ended(run).state == "failed"
    start("trainer", run, 20, 0.001)
    status = ended(run)
    assert (status.state, status.error) == ("done", None)
    start("trainer", run, 30, 0.001, "die=kill25")
    assert "RAM" in ended(run).error.cause


def test_a_program_that_is_not_there(run):
    with pytest.raises(RunError, match="could not be started"):
        supervise.start(None, run, command=["/no/such/python"])
    assert run.status().state == "failed" and "could not be started" in run.status().error.text


def test_start_makes_the_folder_from_a_configuration_and_refuses_a_wrong_one(runs_root, tmp_path):
    good, wrong = tmp_path / "good.toml", tmp_path / "wrong.toml"
    good.write_text(f"[saving]\noutput_name = 'fox'\noutput_dir = {str(runs_root)!r}\n")
    wrong.write_text("[network]\nnetwork_dimm = 3\n")
    with pytest.raises(RunError, match="network_dim"):
        supervise.start(wrong, command=["true"])
    assert list_runs(runs_root) == []
    run = supervise.start(good, command=[sys.executable, "-c", "pass"])
    assert run.path.parent == runs_root and run.name.startswith("fox-")
    # Exit code 0, but not a word of an end: that is not "done".
    assert ended(run).state == "dead"
    with pytest.raises(ValueError, match="needs a configuration or a run"):
        supervise.start(None)


def test_the_command_is_recorded_as_a_list_without_secrets(run):
    supervise.start(None, run, command=[sys.executable, "-c", "pass", "a b", "--token=hf_abcdefghijklmnopqrstuvwxyz"])
    command = run.record()["command"]
    assert command[3] == "a b" and "hf_abc" not in command[4]
    ended(run)


def test_the_default_command_names_the_run(run, monkeypatch):
    """What the trainer is called with, seen by a stand-in for Python."""
    stand_in = run.path / "python"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    supervise.start(None, run, resume=True)
    ended(run)
    assert run.log_path.read_text() == f"-m backend.train --run {run.path} --resume\n"


@pytest.mark.skipif(sys.platform != "win32", reason="job objects are Windows'")
def test_a_job_object_takes_the_helpers_along(run):
    start("stubborn", run)
    eventually((run.path / "pids").exists, "the helpers are there")
    pids = [int(word) for word in (run.path / "pids").read_text().split()]
    psutil.Process(pids[0]).kill()
    eventually(lambda: not any(map(alive, pids)), "all are gone")


def test_toys_are_called_with_lists(run):
    assert toy("trainer", run, 5)[2] == str(run.path)
