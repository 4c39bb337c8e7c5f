"""Finds the operating-system processes that belong to a run, beyond doubt, and ends them.

A pid alone is no identity: after a power cut the same number belongs to somebody else. A process is known by its pid
together with the moment it began.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

# Every process of a run inherits this variable; it finds those that left the session and whose parents are gone.
MARKER = "MONOTILE_RUN"
# And this one, which is another word at each start: what an earlier start left behind is none of the newest one's.
START = "MONOTILE_START"
# Set for a trainer that ends with the process that started it, which holds the other end of its standard input.
WITH_STARTER = "MONOTILE_WITH_STARTER"
# A clock that was set while the process ran moves psutil's create time a little.
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True)
class ProcessId:
    """One process, distinct from later ones with the same pid."""

    pid: int
    create_time: float
    """Unix seconds, as psutil gives them."""
    boot: str | None = None
    """Linux: the id of the boot. With `ticks` it is exact, where the create time moves with the clock."""
    ticks: int | None = None
    """Linux: the start in clock ticks since the boot."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The identity of the process that has ``pid`` now.

        Raises:
            psutil.NoSuchProcess: there is none.
        """
        return cls(pid, psutil.Process(pid).create_time(), boot_id(), _start_ticks(pid))

    @classmethod
    def from_record(cls, record: Mapping) -> ProcessId | None:
        """The identity stored by `to_record`, or None when the record holds none."""
        pid, created = record.get("pid"), record.get("create_time")
        if not isinstance(pid, int) or not 0 < pid < 2**31 or not isinstance(created, int | float):
            return None
        if not abs(created) < 1e15:
            return None
        return cls(pid, float(created), record.get("boot"), record.get("ticks"))

    def to_record(self) -> dict:
        """Plain values for ``run.json``."""
        return {"pid": self.pid, "create_time": self.create_time, "boot": self.boot, "ticks": self.ticks}

    def process(self) -> psutil.Process | None:
        """The living process, or None when it has ended, is a zombie, or its pid belongs to another one."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE or not self._same(process):
                return None
        except psutil.Error:
            return None
        return process

    def is_alive(self) -> bool:
        """True while exactly this process runs."""
        return self.process() is not None

    def _same(self, process: psutil.Process) -> bool:
        boot, ticks = boot_id(), _start_ticks(self.pid)
        if None not in (self.boot, self.ticks, boot, ticks):
            return (self.boot, self.ticks) == (boot, ticks)
        return abs(process.create_time() - self.create_time) <= _CLOCK_SLACK_S


class Tree:
    """All processes of one run: the trainer, its session and group, its descendants, and strays with its marker.

    It remembers whom it has seen, so that a child is still known when its parent has gone and it hides its environment.
    """

    def __init__(self, leader: ProcessId, marker: str, start: str | None) -> None:
        """
        Args:
            leader: the trainer, alive or not.
            marker: the run folder, as it stands in the environment variable `MARKER` of its processes.
            start: the word of the start that made them, as in `START`; None for those of a version without it.
        """
        self.leader = leader
        self.marker = marker
        self.start = start
        self._known: set[psutil.Process] = set()

    def alive(self) -> list[psutil.Process]:
        """Every process of the run that still runs; zombies hold nothing and don't count."""
        leader = self.leader.process()
        if leader is not None:
            self._known.add(leader)
            with contextlib.suppress(psutil.Error):
                self._known.update(leader.children(recursive=True))
        leads = leader is not None and _leads_group(self.leader)
        for process in psutil.process_iter():
            if process not in self._known and process.pid != os.getpid() and self._belongs(process, leads):
                self._known.add(process)
        return [process for process in self._known if _runs(process)]

    def send(self, name: str) -> None:
        """Send ``INT``, ``TERM`` or ``KILL`` to all of them.

        On POSIX the trainer's group gets it in one call, so that none can fork in between, and those outside it one by
        one. On Windows INT is a break event, which arrives only in a shared console; TERM and KILL end the processes.
        """
        processes = self.alive()
        if sys.platform == "win32":
            _send_windows(name, self.leader, processes)
            return
        number = getattr(signal, f"SIG{name}")
        in_group: set[int] = set()
        # Only a group that the trainer leads is its own: one started by hand shares the group of its terminal.
        if self.leader.is_alive() and _leads_group(self.leader):
            in_group = {process.pid for process in processes if _group(process.pid) == self.leader.pid}
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.leader.pid, number)
        for process in processes:
            if process.pid not in in_group:
                # psutil compares the create time first, so that a reused pid is never hit.
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def wait_gone(self, timeout_s: float) -> list[psutil.Process]:
        """Wait until none is left; return those still alive after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        pause_s = 0.02
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.5)
        return left

    def _belongs(self, process: psutil.Process, leads: bool) -> bool:
        try:
            if process.create_time() < self.leader.create_time - _CLOCK_SLACK_S:
                return False
            if leads and (_group(process.pid) == self.leader.pid or os.getsid(process.pid) == self.leader.pid):
                return True
            # Reading the environment is the slower way, and the only one that is safe once the trainer is gone.
            environment = process.environ()
            return _same_folder(environment.get(MARKER), self.marker) and environment.get(START) == self.start
        except (psutil.Error, OSError):
            return False


def _same_folder(value: str | None, marker: str) -> bool:
    return value is not None and os.path.normcase(value) == os.path.normcase(marker)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _leads_group(leader: ProcessId) -> bool:
    return sys.platform != "win32" and leader.pid > 1 and os.getpgrp() != leader.pid == _group(leader.pid)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _send_windows(name: str, leader: ProcessId, processes: list[psutil.Process]) -> None:
    if name == "INT":
        with contextlib.suppress(OSError, ValueError):
            os.kill(leader.pid, signal.CTRL_BREAK_EVENT)  # type: ignore[attr-defined]
        return
    # TERM ends the trainer only: its job object takes the others along (see windows_job.py). KILL spares none.
    for process in processes if name == "KILL" else [p for p in processes if p.pid == leader.pid]:
        with contextlib.suppress(psutil.Error):
            process.kill()


@cache
def boot_id() -> str | None:
    """Linux: the word that this boot of the system has; None elsewhere."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return None


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat (proc_pid_stat(5)); the name before it may itself hold spaces and parentheses."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text[text.rindex(")") + 2 :].split()[19])
    return None
