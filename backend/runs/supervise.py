"""Starts a trainer that outlives the program that started it, and stops it with all its processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from backend.runs import record
from backend.runs.control import Control
from backend.runs.errors import RunError
from backend.runs.folder import FINAL, Run
from backend.runs.liveness import is_here
from backend.runs.process import MARKER, START, ProcessId, Tree
from backend.runs.recovery import end_tree, settle
from backend.runs.spawn import spawn_detached

if TYPE_CHECKING:
    from backend.config.schema import Config

log = logging.getLogger(__name__)

# Seconds after each signal; a trainer gets INT only when it did not answer its control file.
LADDER: tuple[tuple[Literal["INT", "TERM", "KILL"], float], ...] = (("INT", 10.0), ("TERM", 10.0), ("KILL", 10.0))
# A trainer that ended by itself leaves helpers that need a moment to notice.
_AFTERLIFE_S = 5.0
# A trainer that has written its end still takes its libraries down.
_LEAVING_S = 60.0

How = Literal["not running", "asked", "INT", "TERM", "KILL"]


@dataclass(frozen=True)
class StopResult:
    """How a stop went."""

    run: Run
    how: How
    """What it took: ``asked`` is the gentle way, the others are signals."""
    seconds: float
    survivors: tuple[int, ...] = ()
    """The pids that could not be ended."""

    @property
    def stopped(self) -> bool:
        """True when no process of the run is left."""
        return not self.survivors

    def sentence(self) -> str:
        """One sentence for people, with what to do where something is left."""
        if self.survivors:
            pids = ", ".join(map(str, self.survivors))
            return (
                f"{self.run.name}: the processes {pids} could not be ended: they hang in the GPU driver or on a disk. "
                "Restart the machine to free the GPU."
            )
        if self.how == "not running":
            return f"{self.run.name} was not running."
        if self.how == "asked":
            return f"{self.run.name} has stopped as requested."
        return f"{self.run.name} did not respond and was ended ({self.how}); the last saved state is kept."


def start(
    config: Config | str | Path | None,
    run: Run | None = None,
    *,
    resume: bool = False,
    changes: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Start a trainer in a process of its own, detached from this one: closing this program leaves it running.

    Args:
        config: the configuration or the path of its TOML; None for the one that ``run`` already holds.
        run: an existing run folder; a new one is made from ``config`` when None.
        resume: continue from the run's saved state.
        changes: settings of a resumed run that are replaced from there on, by path, as a command line has them. The
            trainer writes them into the run's settings once nothing refuses them.
        command: the whole command as a list, for a trainer other than ``python -m backend.train``.
        environment: variables to set in addition to this process's own.

    Returns:
        The run, with the process in its record.

    Raises:
        RunBusy: the run is already being trained.
        RunError: the configuration has errors, or the process can't be started.
        WriteFailed: the run folder can't be written.
    """
    run = _folder(config, run)
    if resume:
        _let_leave(run)
    if command is None:
        command = [sys.executable, "-m", "backend.train", "--run", str(run.path), *(["--resume"] if resume else [])]
        command += [f"--{path}={value}" for path, value in (changes or {}).items()]
    word = run.prepare_start(list(command))
    try:
        with open(run.log_path, "ab") as output:
            process = spawn_detached(command, output, trainer_environment(run, word, environment or {}))
    except OSError as error:
        failure = {
            "text": f"The trainer could not be started: {error}.",
            "remedy": "Start launcher.py to repair .venv.",
        }
        run.finish("failed", start=word, error=failure)
        raise RunError(failure["text"], failure["remedy"]) from error
    try:
        identity = ProcessId.of(process.pid)
    except psutil.NoSuchProcess:  # gone already; the thread below learns how
        identity = ProcessId(process.pid, time.time())
    record.update(run.record_path, lambda current: _if_started(current, word, identity.to_record()))
    waiting = (run, process, identity, word)
    threading.Thread(target=_wait, args=waiting, name=f"wait {run.name}", daemon=True).start()
    return run


def stop(
    run: Run,
    grace_s: float = 120.0,
    *,
    ladder: Sequence[tuple[Literal["INT", "TERM", "KILL"], float]] = LADDER,
    say: Callable[[str], None] = log.info,
) -> StopResult:
    """Stop a run and make sure that nothing of it is left; returns when that is so, or nothing more can be done.

    First the trainer is asked (it saves and ends), then the whole group gets INT, TERM and KILL.

    Args:
        run: the run.
        grace_s: seconds for the gentle way; 0 goes straight to the signals.
        ladder: the signals and the seconds after each.
        say: takes one line at each rung, for a terminal.
    """
    begun = time.monotonic()
    known = run.record()
    leader, word = ProcessId.from_record(known), known.get("start")
    if leader is None:
        settle(run)
        return StopResult(run, "not running", 0.0)
    if not is_here(known):
        return _stop_elsewhere(run, known, grace_s, say)
    tree = Tree(leader, str(run.path), word)
    how: How = "not running"
    if leader.is_alive():
        how = "asked"
        record.update(run.record_path, lambda current: _ask(run, current, word, {"stop_asked": time.time()}))
        say(f"Asked {run.name} to save and stop.")
        tree.alive()
        _wait_leader(leader, grace_s)
        if not leader.is_alive():
            tree.wait_gone(min(grace_s, _AFTERLIFE_S))
    for rung, patience_s in ladder:
        if not tree.alive():
            break
        if leader.is_alive():
            # Said before it is done, so that the end which follows is not taken for a crash.
            fields = {"stop_asked": time.time(), "stop_rung": rung}
            record.update(run.record_path, lambda current, fields=fields: _if_started(current, word, fields))
            how = rung
        say(f"Sending {rung} to the processes of {run.name}.")
        tree.send(rung)
        tree.wait_gone(patience_s)
    survivors = tuple(process.pid for process in tree.alive())
    if not survivors:
        settle(run)
    return StopResult(run, how, time.monotonic() - begun, survivors)


def stop_in_background(run: Run, grace_s: float = 120.0) -> threading.Thread:
    """`stop` in a thread, for the page; the status says how far it is. A second call while it runs joins the first."""
    with _stopping_lock:
        thread = _stopping.get(run)
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=stop, args=(run, grace_s), name=f"stop {run.name}", daemon=True)
            _stopping[run] = thread
            thread.start()
        return thread


_stopping: dict[Run, threading.Thread] = {}
_stopping_lock = threading.Lock()


def _if_started(current: dict, word: object, fields: Mapping[str, object]) -> dict | None:
    """The record with these fields, if it is still about the start of this word."""
    return current | dict(fields) if current.get("start") == word else None


def _ask(run: Run, current: dict, word: object, fields: Mapping[str, object]) -> dict | None:
    """As `_if_started`, with the request to stop."""
    if current.get("start") == word:
        Control(run).request("stop")
    return _if_started(current, word, fields)


def _stop_elsewhere(run: Run, known: dict, grace_s: float, say: Callable[[str], None]) -> StopResult:
    """Ask a trainer on another machine by the run's folder, which is all that this one can do.

    Raises:
        RunError: it did not end.
    """
    begun, word = time.monotonic(), known.get("start")
    if not run.is_at_work():
        return StopResult(run, "not running", 0.0)
    record.update(run.record_path, lambda current: _ask(run, current, word, {"stop_asked": time.time()}))
    say(f"Asked {run.name} on {known['host']} to save and stop.")
    while run.is_at_work():
        if time.monotonic() - begun > grace_s:
            raise RunError(f"{run.name} is being trained on {known['host']} and has not ended yet.", "Stop it there.")
        time.sleep(0.2)
    return StopResult(run, "asked", time.monotonic() - begun)


def _let_leave(run: Run) -> None:
    """Wait for a process that has written its end: after a stop, taking torch down takes seconds more."""
    until = time.monotonic() + _LEAVING_S
    while time.monotonic() < until:
        current = run.record()
        process = ProcessId.from_record(current)
        if current.get("state") not in FINAL or process is None or not process.is_alive():
            return
        time.sleep(0.1)


def _folder(config: Config | str | Path | None, run: Run | None) -> Run:
    if config is None:
        if run is None:
            raise ValueError("start needs a configuration or a run")
        return run
    from backend.config.toml_io import dump

    if isinstance(config, str | Path):
        from backend.config.load import load

        loaded = load(config)
        if loaded.config is None:
            listed = " ".join(problem.sentence() for problem in loaded.problems)
            raise RunError(f"{config} can't be used: {listed}", "Correct it and start again.")
        config = loaded.config
    if run is None:
        return Run.create(config)
    dump(config, run.config_path, whole=True)
    return run


def trainer_environment(run: Run, word: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Variables of a trainer whose start has this word (`Run.prepare_start`). extra: further ones."""
    # What `accelerate config` once stored for this machine must not change a run behind its configuration's back, and
    # the page's password is nothing that a trainer needs.
    left_out = ("ACCELERATE_", "FSDP_", "MONOTILE_PASSWORD")
    own = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return own | {
        MARKER: str(run.path),
        START: word,
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        # Models come from disk. Nothing asks the net, and nothing tells it.
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **extra,
    }


def _wait(run: Run, process: subprocess.Popen, identity: ProcessId, word: str) -> None:
    """Learn a trainer's exit code (only its parent can), write it down, and leave nothing of it behind."""
    tree = Tree(identity, str(run.path), word)
    code = process.wait()

    def change(current: dict) -> dict | None:
        # By now somebody may have resumed the run with another process.
        return current | {"exit_code": code} if ProcessId.from_record(current) == identity else None

    try:
        if record.update(run.record_path, change).get("exit_code") == code:
            settle(run)
    except OSError as error:
        log.warning("The end of %s could not be written down: %s", run.name, error)
    if tree.wait_gone(_AFTERLIFE_S):
        end_tree(tree)


def _wait_leader(leader: ProcessId, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while leader.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
