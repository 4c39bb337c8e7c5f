"""Start a trainer that outlives whoever started it, stop it for certain, and put the records right after a crash."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from backend.base.files import remove_abandoned
from backend.runs import record
from backend.runs.control import Control
from backend.runs.errors import RunError
from backend.runs.folder import FINAL, Run, list_runs
from backend.runs.process import MARKER, ProcessId, Tree
from backend.runs.status import RunStatus

if TYPE_CHECKING:
    from backend.config.schema import Config

log = logging.getLogger(__name__)

# Seconds after each signal; a trainer gets INT only when it did not answer its control file.
LADDER: tuple[tuple[Literal["INT", "TERM", "KILL"], float], ...] = (("INT", 10.0), ("TERM", 10.0), ("KILL", 10.0))
# A trainer that ended by itself leaves helpers that need a moment to notice.
_AFTERLIFE_S = 5.0
# A trainer that has told its end still takes its libraries down.
_LEAVING_S = 60.0
# A trainer that was just spawned is not in its record yet.
_START_GRACE_S = 30.0
_ROOT = Path(__file__).resolve().parents[2]

How = Literal["not running", "asked", "INT", "TERM", "KILL"]


@dataclass(frozen=True)
class StopResult:
    """How a stop went: what it took (``asked`` is the gentle way), its seconds, and pids that could not be ended."""

    run: Run
    how: How
    seconds: float
    survivors: tuple[int, ...] = ()

    @property
    def stopped(self) -> bool:
        """True when no process of the run is left."""
        return not self.survivors

    def sentence(self) -> str:
        """One sentence for people, with what to do where something is left."""
        if self.survivors:
            pids = ", ".join(map(str, self.survivors))
            return (
                f"{self.run.name}: the processes {pids} could not be ended; they hang in the driver or the disk. "
                "Restart the machine to free the GPU."
            )
        if self.how == "not running":
            return f"{self.run.name} was not running."
        if self.how == "asked":
            return f"{self.run.name} has ended as asked."
        return f"{self.run.name} did not answer and was ended ({self.how}); the last saved state is kept."


def start(
    config: Config | str | Path | None,
    run: Run | None = None,
    *,
    resume: bool = False,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Start a trainer in a process of its own, detached from this one: closing this program leaves it running.

    Args:
        config: the configuration or the path of its TOML; None for the one that ``run`` already holds.
        run: an existing run folder; a new one is made from ``config`` when None.
        resume: go on from the run's saved state.
        command: the whole command as a list, for a trainer other than ``python -m backend.train``.
        environment: variables to set beside this process's own.

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
    run.prepare_start(list(command))
    try:
        with open(run.log_path, "ab") as output:
            process = _spawn(command, output, _environment(run, environment or {}))
    except OSError as error:
        failure = {
            "text": f"The trainer could not be started: {error}.",
            "remedy": "Start launcher.py to repair .venv.",
        }
        run.finish("failed", error=failure)
        raise RunError(failure["text"], failure["remedy"]) from error
    try:
        identity = ProcessId.of(process.pid)
    except psutil.NoSuchProcess:  # gone already; the thread below learns how
        identity = ProcessId(process.pid, time.time())
    record.set_fields(run.record_path, **identity.to_record())
    threading.Thread(target=_wait, args=(run, process, identity), name=f"wait {run.name}", daemon=True).start()
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
    leader = run.process()
    if leader is None:
        settle(run)
        return StopResult(run, "not running", 0.0)
    tree = Tree(leader, str(run.path))
    how: How = "not running"
    if leader.is_alive():
        how = "asked"
        record.set_fields(run.record_path, stop_asked=time.time())
        Control(run).request("stop")
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
            record.set_fields(run.record_path, stop_asked=time.time(), stop_rung=rung)
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


def reconcile(root: str | Path) -> list[RunStatus]:
    """Put right what a crash or power cut left in the records; called when the page or the terminal starts.

    A run whose process is gone gets its end written down with the likely cause; old requests and half-written files are
    removed, and processes that a dead trainer left behind are ended. Runs that are alive are left alone.

    Returns:
        The status of each run that was changed.
    """
    changed = []
    runs = list_runs(root)
    for run in runs:
        try:
            if run.record().get("state") not in FINAL and not run.is_alive():
                status = settle(run)
                if status.state in FINAL:
                    changed.append(status)
        except OSError as error:
            # A folder that can't be written must not keep the page from opening.
            log.warning("The record of %s can't be put right: %s", run.name, error)
    _end_strays({str(run.path): run for run in runs})
    return changed


def settle(run: Run) -> RunStatus:
    """Write down how a run ended whose process is gone and did not say so itself; does nothing to one that is alive."""
    status = run.status()
    if status.active:
        return status
    if run.record().get("state") not in FINAL:
        error = status.error
        fields: dict[str, object] = {"step": status.step}
        if error is not None:
            fields["error"] = {
                "text": error.text,
                "cause": error.cause,
                "remedy": error.remedy,
                "exception": error.exception,
            }
        # The trainer ended when it last wrote something, which may be days before this is written down.
        run.finish(status.state, ended=_last_sign(run), **fields)  # type: ignore[arg-type]
    Control(run).clear_all()
    remove_abandoned(run.path)
    return run.status()


def _let_leave(run: Run) -> None:
    """Wait for a process that has told its end: after a stop, taking torch down takes seconds more."""
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


def _environment(run: Run, extra: Mapping[str, str]) -> dict[str, str]:
    # What `accelerate config` once stored for this machine must not change a run behind its configuration's back.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "FSDP_"))}
    return own | {
        MARKER: str(run.path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        # Models come from disk. Nothing asks the net, and nothing tells it.
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **extra,
    }


def _spawn(command: Sequence[str], output: object, environment: Mapping[str, str]) -> subprocess.Popen:
    common = {
        "stdin": subprocess.DEVNULL,
        "stdout": output,
        "stderr": subprocess.STDOUT,
        "cwd": _ROOT,
        "env": dict(environment),
    }
    if sys.platform != "win32":
        return subprocess.Popen(list(command), start_new_session=True, **common)
    # A console of its own: closing the launcher's window would end a trainer that shares it.
    flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    with suppress(PermissionError):
        # Leave the job of an editor or terminal that ends all its processes when it closes, where that is allowed.
        return subprocess.Popen(list(command), creationflags=flags | subprocess.CREATE_BREAKAWAY_FROM_JOB, **common)
    return subprocess.Popen(list(command), creationflags=flags, **common)


def _wait(run: Run, process: subprocess.Popen, identity: ProcessId) -> None:
    """Learn a trainer's exit code (only its parent can), write it down, and leave nothing of it behind."""
    tree = Tree(identity, str(run.path))
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
        _end(tree)


def _last_sign(run: Run) -> float | None:
    times = []
    for path in (run.log_path, run.events_path, run.metrics_path, Path(f"{run.metrics_path}-wal")):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    begun = run.record().get("started")
    return max(times) if times and (not begun or max(times) >= begun) else None


def _wait_leader(leader: ProcessId, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while leader.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)


def _end(tree: Tree) -> None:
    for rung, patience_s in (("TERM", 5.0), ("KILL", 5.0)):
        tree.send(rung)
        if not tree.wait_gone(patience_s):
            return
    log.warning("Processes of %s could not be ended.", tree.marker)


def _end_strays(runs: Mapping[str, Run]) -> None:
    """End what the trainers of these runs left behind; one look at the processes serves all runs."""
    left: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            marker = process.environ().get(MARKER)
            if marker in runs and process.pid != os.getpid():
                left.add(marker)
    for marker in left:
        current = runs[marker].record()
        leader = ProcessId.from_record(current)
        recent = time.time() - (current.get("started") or 0) < _START_GRACE_S
        if leader is not None and not leader.is_alive() and not recent:
            log.warning("Ending processes that %s left behind.", runs[marker].name)
            _end(Tree(leader, marker))
