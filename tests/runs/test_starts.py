"""Starts that meet each other: nobody ends another's trainer, and of two at once one is told to wait."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from backend.runs import liveness as place
from backend.runs import recovery, supervise
from backend.runs import start_lock as admission
from backend.runs.control import Control
from backend.runs.errors import RunBusy, RunError
from backend.runs.folder import Run
from backend.runs.process import MARKER, START, ProcessId, boot_id
from backend.runs.start_lock import one_start
from tests.tiny.runs import ROOT, eventually, set_fields, start, toy


def processes_of(run: Run) -> list[int]:
    pids = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == str(run.path) and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
        except psutil.Error:
            continue
    return pids


def test_a_resume_right_after_a_stop_is_left_alone(run, monkeypatch):
    """What the stop still cleans up is the old start's, also where that left a helper behind."""
    monkeypatch.setattr(supervise, "_AFTERLIFE_S", 0.2)
    helper = None
    for cycle in range(3):
        start("trainer", run, 100_000, 0.002)
        eventually(lambda: run.status().state == "running" and run.is_alive(), "it trains")
        word = run.record()["start"]
        if cycle == 1:
            environment = {**os.environ, MARKER: str(run.path), START: word}
            helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
        stopping = threading.Thread(target=supervise.stop, args=(run, 30.0), kwargs={"say": lambda _: None})
        stopping.start()
        eventually(lambda: run.record().get("state") == "stopped", "it has told its end")
        start_again = eventually(lambda: _started(run), "it is resumed at once")
        assert start_again != word
        recovery.reconcile(run.path.parent)
        stopping.join()
        time.sleep(0.4)
        assert run.is_alive() and run.status().state == "running", (cycle, run.log_path.read_text()[-500:])
        assert Control(run).pending() == set() and "stop_asked" not in run.record()
        supervise.stop(run, say=lambda _: None)
    assert helper.wait(30) != 0  # of the start that left it, it was ended
    assert processes_of(run) == []


def _started(run: Run) -> str | None:
    try:
        start("trainer", run, 100_000, 0.002)
    except RunBusy:  # the process before is still leaving
        return None
    return run.record()["start"]


def test_of_two_resumes_at_once_one_is_refused_and_the_other_trains(run):
    outcomes: list[object] = []
    gate = threading.Barrier(4)

    def resume():
        gate.wait()
        try:
            start("trainer", run, 100_000, 0.002)
            outcomes.append("started")
        except RunBusy as error:
            outcomes.append(error.text)

    threads = [threading.Thread(target=resume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("started") == 1, outcomes
    assert all("already being" in text for text in outcomes if text != "started")
    eventually(lambda: run.status().step > 20, "the one that started trains on")
    assert len(processes_of(run)) == 1 and run.status().state == "running"


ONE_START = """
import sys
from backend.runs import supervise
from backend.runs.start_lock import one_start
from backend.runs.errors import RunBusy
from backend.runs.folder import Run, list_runs
run = Run(sys.argv[1])
sys.stdin.readline()
try:
    with one_start(lambda: list_runs(run.path.parent), but=run):
        supervise.start(None, run, command=sys.argv[2:])
    print("started")
except RunBusy as error:
    print(error)
"""


def test_two_runs_at_once_from_two_programs_share_no_gpu(runs_root):
    """As a page and a terminal do: check and start lie under one lock."""
    runs = [Run.create_empty(runs_root, name) for name in ("first", "second", "third")]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_START, str(run.path), *toy("trainer", run, 100_000, 0.002)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for run in runs
    ]  # fmt: skip
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    outputs = [program.communicate(timeout=60)[0].strip() for program in programs]
    assert outputs.count("started") == 1, outputs
    assert all("is still running" in text and "Stop it first" in text for text in outputs if text != "started")
    winner = runs[outputs.index("started")]
    assert [run for run in runs if run.is_at_work()] == [winner]
    supervise.stop(winner, say=lambda _: None)


def test_runs_with_a_gpu_each_may_start(runs_root, monkeypatch):
    other, run = Run.create_empty(runs_root, "other"), Run.create_empty(runs_root, "mine")
    other.prepare_start(["x"])
    set_fields(other.record_path, gpus="0")
    monkeypatch.setattr(admission, "has_gpu", lambda: True)
    for own, free in ((None, False), ("0", False), ("1", True), ("1,0", False)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if own is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
        try:
            with one_start(lambda: [other, run], but=run):
                allowed = True
        except RunBusy:
            allowed = False
        assert allowed == free, own


def test_a_run_on_another_machine_is_not_waited_for(runs_root):
    """A folder that machines share; a container of this one has its boot, and maybe its GPU."""
    other, run = Run.create_empty(runs_root, "other"), Run.create_empty(runs_root, "mine")
    other.prepare_start(["x"])
    set_fields(other.record_path, host="elsewhere", boot=boot_id())
    with pytest.raises(RunBusy), one_start(lambda: [other, run], but=run):
        pass
    set_fields(other.record_path, boot="another boot")
    assert other.is_at_work()
    with one_start(lambda: [other, run], but=run):
        pass


def test_without_a_gpu_a_second_start_is_refused_for_the_cpu(runs_root, monkeypatch, tmp_path):
    """And with one, a run that has all GPUs hidden from it shares the CPU with others of its kind alone."""
    other, run = Run.create_empty(runs_root, "other"), Run.create_empty(runs_root, "mine")
    other.prepare_start(["x"])
    monkeypatch.setattr(admission, "AMD_DRIVER", tmp_path / "kfd")
    cases = [(False, None, None, "CPU"), (False, "0", "1", "CPU"), (True, None, None, "one GPU")]
    cases += [(True, "", "", "CPU"), (True, None, "", None), (True, "", None, None), (True, "-1", "", "CPU")]
    for gpu, theirs, own, shared in cases:
        monkeypatch.setattr(admission, "has_gpu", lambda gpu=gpu: gpu)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        set_fields(other.record_path, gpus=theirs)
        if own is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
        try:
            with one_start(lambda: [other, run], but=run):
                text = None
        except RunBusy as error:
            text = str(error)
        assert (text is None) == (shared is None) and (shared or "") in (text or ""), (gpu, theirs, own, text)
        assert shared != "CPU" or ("GPU" not in text and "Stop it first" in text)


def test_a_lock_that_can_not_be_made_does_not_keep_runs_from_starting(run, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(admission, "LOCK", tmp_path / "file" / "lock")
    with one_start(lambda: [run], but=run):
        pass


def test_a_start_whose_starter_died_does_not_block_the_next(run):
    run.prepare_start(["x"])
    with pytest.raises(RunBusy, match="already being started"):
        run.prepare_start(["y"])
    gone = subprocess.Popen([sys.executable, "-c", ""])
    identity = ProcessId.of(gone.pid).to_record()
    gone.wait()
    set_fields(run.record_path, starter=identity)
    assert run.prepare_start(["y"]) == run.record()["start"]


def elsewhere(run: Run, fresh: bool) -> Run:
    """As a trainer in another container leaves it, whose pid here is some other process's, or nobody's."""
    run.prepare_start(["x"])
    set_fields(run.record_path, pid=os.getpid(), create_time=1.0, boot="another", ticks=1, host="render-box",
               pid_namespace="pid:[1]", starter=None)  # fmt: skip
    run.alive_path.touch()
    if not fresh:
        os.utime(run.alive_path, (time.time() - 3600, time.time() - 3600))
    return run


def test_a_run_on_another_machine_is_seen_by_its_sign_of_life(run, runs_root, monkeypatch):
    (run.state_dir / f".half.{2**22 + 7}-0123abcd.part").touch()
    before = elsewhere(run, fresh=True).record()
    status = run.status()
    assert (status.state, status.host, status.pid) == ("starting", "render-box", os.getpid())
    assert recovery.reconcile(runs_root) == [] and recovery.settle(run).active
    with pytest.raises(RunBusy, match="render-box"):
        run.prepare_start(["y"])
    monkeypatch.setattr(place, "FRESH_S", -1.0)
    assert run.status().state == "dead" and "render-box" in run.status().text
    assert recovery.reconcile(runs_root) == []  # nobody else concludes for good
    assert run.record() == before and list(run.state_dir.iterdir())
    assert run.prepare_start(["y"])  # a person may decide that it is gone


def test_another_machine_is_asked_to_stop_by_the_folder_alone(run):
    elsewhere(run, fresh=True)
    with pytest.raises(RunError, match="render-box.* Stop it there"):
        supervise.stop(run, grace_s=0.3, say=lambda _: None)
    assert Control(run).pending() == {"stop"}


def test_a_clock_that_is_wrong_elsewhere_does_not_matter_once_it_ticks(run):
    os.utime(elsewhere(run, fresh=True).alive_path, (1000.0, 1000.0))
    assert not run.is_alive()
    os.utime(run.alive_path, (1005.0, 1005.0))
    assert run.is_alive()


def test_the_owner_takes_back_that_it_is_dead(run):
    start("trainer", run, 100_000, 0.002)
    eventually(lambda: run.status().step > 3, "it trains")
    run.finish("dead", error={"text": "Another machine could not see it."})
    assert run.record()["state"] == "dead"
    eventually(lambda: run.record().get("state") is None, "the trainer corrects its record")
    assert "error" not in run.record()
    run.finish("dead")
    supervise.stop(run, say=lambda _: None)
    assert run.record()["state"] == "stopped"  # its own word counts more


def test_what_was_judged_of_one_start_is_not_written_about_the_next(run):
    first = run.prepare_start(["x"])
    set_fields(run.record_path, starter=None)
    second = run.prepare_start(["y"])
    run.finish("dead", start=first)
    assert run.record()["start"] == second and "state" not in run.record()
