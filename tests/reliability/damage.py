"""Hurts real supervised processes at random moments, many times, and looks whether what is told of them is true."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from backend.runs import recovery, supervise
from backend.runs.errors import RunBusy
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.process import MARKER

log = logging.getLogger("reliability")

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "tests" / "runs" / "toys" / "trainer.py"
_LONG = 10_000_000
_LIMIT_S = 60.0


@dataclass
class Tally:
    """How often something was done to a run, and what did not hold afterwards."""

    name: str
    cycles: int = 0
    wrong: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        return f"{self.name}: {self.cycles} times, {len(self.wrong)} wrong"


def start(run: Run, steps: int = _LONG) -> Run:
    """Start, or resume, the trainer without a model that the tests have."""
    command = [sys.executable, str(TRAINER), str(run.path), str(steps), "0.002"]
    return supervise.start(None, run, command=command, environment={"PYTHONPATH": str(ROOT)})


def eventually(condition: Callable[[], object], what: str) -> object:
    """Wait for `condition`; TimeoutError with its words when it does not come."""
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.02)
    raise TimeoutError(what)


def kill(run: Run, dice: random.Random, tally: Tally) -> None:
    """KILL at any moment from the start on; the rows are one series, the end is told, nothing half-written stays."""
    start(run)
    time.sleep(dice.uniform(0.0, 1.5))
    os.kill(run.process().pid, signal.SIGKILL)  # type: ignore[union-attr]
    eventually(lambda: run.record().get("state"), "the end of a killed run is written down")
    status = run.status()
    rows = [row["step"] for row in MetricsReader(run).tail(_LONG)]
    _check(tally, status.state in ("dead", "failed") and status.error is not None, f"a killed run is {status.state}")
    _check(tally, rows == list(range(1, len(rows) + 1)), "rows are missing")
    _check(tally, status.state_step is None or not rows or status.state_step <= rows[-1], "a state beyond its rows")
    # the record is written under a lock; what a kill left half-done is cleared when the end is written down
    eventually(lambda: not list(run.path.rglob("*.part")), "half-written files are cleared")


def stop_and_resume(run: Run, dice: random.Random, tally: Tally) -> None:
    """A resume the moment that a stop is told: the new trainer trains on, and is the only one."""
    start(run)
    eventually(lambda: run.status().phase == "train" and run.status().step > 0, "it trains")
    stopping = threading.Thread(target=supervise.stop, args=(run, 30.0), kwargs={"say": lambda _: None})
    stopping.start()
    eventually(lambda: run.record().get("state") == "stopped", "it stops")
    time.sleep(dice.uniform(0.0, 0.3))
    while True:
        with suppress(RunBusy):
            start(run)
            break
        time.sleep(0.01)
    recovery.reconcile(run.path.parent)
    stopping.join()
    time.sleep(0.5)
    _check(tally, run.is_alive() and run.status().state in ("starting", "running"), f"resumed: {run.status().text}")
    supervise.stop(run, say=lambda _: None)
    _check(tally, not _processes(run), "processes are left")


def resume_twice(run: Run, dice: random.Random, tally: Tally) -> None:
    """Two resumes at once: one is refused, the other trains on."""
    outcomes: list[bool] = []

    def resume(wait_s: float) -> None:
        time.sleep(wait_s)
        try:
            start(run)
            outcomes.append(True)
        except RunBusy:
            outcomes.append(False)

    threads = [threading.Thread(target=resume, args=(dice.uniform(0.0, 0.05),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: run.status().state == "running", "one of two trains")
    _check(tally, sorted(outcomes) == [False, True], f"of two resumes {outcomes.count(True)} started")
    _check(tally, len(_processes(run)) == 1, f"{len(_processes(run))} trainers")
    supervise.stop(run, say=lambda _: None)


def take_folder(run: Run, dice: random.Random, tally: Tally) -> None:
    """The folder goes while it trains: it is made again with all rows, and a stop saves into it."""
    start(run)
    eventually(lambda: run.status().phase == "train" and run.status().step > 0, "it trains")
    time.sleep(dice.uniform(0.0, 0.5))
    shutil.rmtree(run.path.rename(run.path.with_name(f"{run.name}-gone")))
    eventually(lambda: run.metrics_path.exists() and run.record().get("pid"), "the folder is made again")
    eventually(lambda: run.status().state_step is not None, "it saves again")
    supervise.stop(run, say=lambda _: None)
    rows = [row["step"] for row in MetricsReader(run).tail(_LONG)]
    _check(tally, rows == list(range(1, len(rows) + 1)), "rows are missing")
    _check(tally, run.status().state == "stopped" and run.status().resumable, run.status().text)


def pause(run: Run, dice: random.Random, tally: Tally) -> None:
    """STOP: it is told, a CONT lets it continue, and a stop ends it although it hears nothing."""
    start(run)
    eventually(lambda: run.status().phase == "train" and run.status().step > 0, "it trains")
    pid = run.process().pid  # type: ignore[union-attr]
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: run.status().hang is not None, "a paused trainer is told")
    if dice.random() < 0.5:
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: run.status().hang is None, "it continues")
    ladder = (("INT", 0.2), ("TERM", 0.2), ("KILL", 30.0))
    result = supervise.stop(run, grace_s=0.5, ladder=ladder, say=lambda _: None)
    _check(tally, result.stopped and run.status().state == "stopped", run.status().text)


PARTS: dict[str, Callable[[Run, random.Random, Tally], None]] = {
    "killed at a random moment": kill,
    "stopped and resumed at once": stop_and_resume,
    "resumed twice at once": resume_twice,
    "folder taken away": take_folder,
    "paused": pause,
}


def measure(cycles: int, seed: int) -> list[Tally]:
    """Do each thing so many times, each to one run that is resumed again and again."""
    dice, tallies = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="monotile-damage-") as folder:
        for name, hurt in PARTS.items():
            tally, run = Tally(name), Run.create_empty(folder, "toy")
            for _ in range(cycles):
                try:
                    hurt(run, dice, tally)
                except TimeoutError as error:
                    tally.wrong.append(f"it never came to pass that {error}")
                    supervise.stop(run, 0.0, say=lambda _: None)
                tally.cycles += 1
            tallies.append(tally)
            log.info("%s %s", tally.sentence(), tally.wrong[:3] or "")
    return tallies


def _check(tally: Tally, holds: bool, what: str) -> None:
    if not holds:
        tally.wrong.append(what)


def _processes(run: Run) -> list[int]:
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARKER) == str(run.path) and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
    return pids
