"""Starts the other processes of a run that trains with several, and notices when one of them ends.

Each reads what to do from its standard input, which ends with the process that started it, and with that the other one
ends too. On its standard output it writes one line, when it fails: why.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from backend.base.errors import Failed
from backend.config.schema import Config
from backend.runs.diagnose import diagnose
from backend.runs.folder import Run
from backend.runs.process import WITH_STARTER
from backend.training.environment import set_gpu

log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[3]
_LEAVE_S = 10.0
_STUCK_S = 20.0
"""How long an exchange on the GPU may wait for a process that has ended."""
_TAIL = 30_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Go:
    """What the other processes need to know once pictures and captions are encoded."""

    store: str
    """The file in which the processes find each other."""
    state: str | None
    """The folder of the state to continue from."""
    products: str | None
    """How 8-bit products are computed."""


class Others:
    """The other processes of a run, from its first one's view."""

    def __init__(self, run: Run, cfg: Config, gpus: str | None) -> None:
        """Start them; they load torch and wait for `go`. gpus: CUDA_VISIBLE_DEVICES that the run was started with."""
        self._run = run
        self._failure: Failed | None = None
        self._ending = False
        self.on_failure: Callable[[], object] = lambda: None
        """Called some seconds after a process has ended before its time."""
        self._processes = [self._start(rank, cfg, gpus) for rank in range(1, cfg.training.num_processes)]

    def _start(self, rank: int, cfg: Config, gpus: str | None) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name != WITH_STARTER}
        set_gpu(environment, cfg, gpus, rank)
        command = [sys.executable, "-m", "backend.training.ranks", str(self._run.path), str(rank)]
        with open(self._run.rank_log_path(rank), "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=_ROOT,
                env=environment,
                text=True,
                encoding="utf-8",
            )
        self._say(process, cfg.model_dump_json())
        watch = threading.Thread(target=self._watch, args=(rank, process), name=f"process {rank}", daemon=True)
        watch.start()
        log.info("Process %d has the pid %d", rank, process.pid)
        return process

    def go(self, go: Go) -> None:
        """Let them load the model and train."""
        line = json.dumps({name: getattr(go, name) for name in go.__slots__})
        for process in self._processes:
            self._say(process, line)

    def failure(self) -> Failed | None:
        """Why one of them ended before its time; None while all live."""
        return self._failure

    def end(self) -> None:
        """Let them end, and end those that don't."""
        self._ending = True
        for process in self._processes:
            with suppress(OSError):
                _open(process.stdin).close()
        for process in self._processes:
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _say(self, process: subprocess.Popen[str], line: str) -> None:
        # one that has ended is noticed by its watch
        with suppress(OSError):
            stream = _open(process.stdin)
            stream.write(line + "\n")
            stream.flush()

    def _watch(self, rank: int, process: subprocess.Popen[str]) -> None:
        report = _open(process.stdout).read()
        code = process.wait()
        if self._ending or code == 0:
            return
        self._failure = self._failure or _reason(rank, report, code, self._run.rank_log_path(rank))
        log.error("%s", self._failure.text)
        # a first process that exchanges something on the CPU notices by itself
        wait = threading.Event()
        wait.wait(_STUCK_S)
        if not self._ending:
            self.on_failure()


def _reason(rank: int, report: str, code: int, log_path: Path) -> Failed:
    """Why process `rank` ended: as it says, or as its exit code and the end of its log tell."""
    name = f"Process {rank} of those that train together (its log: {log_path.name})"
    with suppress(ValueError, TypeError, KeyError):
        line = json.loads(report)
        return OtherEnded(f"{name} failed: {line['text']}", line["remedy"], line["cause"], line["kind"])
    try:
        tail = log_path.read_bytes()[-_TAIL:].decode("utf-8", "replace")
    except OSError:
        tail = ""
    diagnosis = diagnose(tail, code)
    return OtherEnded(f"{name} ended: {diagnosis.text}", diagnosis.remedy, diagnosis.cause, diagnosis.kind)


class OtherEnded(Failed):
    """Another process of the run has ended before its time. cause, kind: those of `backend.runs.diagnose`."""

    def __init__(self, text: str, remedy: str, cause: str, kind: str) -> None:
        super().__init__(text, remedy)
        self.cause = cause
        self.kind = kind


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
