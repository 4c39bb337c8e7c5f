"""Runs pip, shows what it does, and explains why it failed."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from backend.setup.errors import SetupError
from backend.setup.report import Report, span

_RAW_PROGRESS = (24, 1)
"""The first pip that reports its progress in numbers."""

_NEVER_IMPORTED = r"[\\/]tests?[\\/]"
"""Folders whose modules nobody imports: an eighth of all packages' source. The project itself may lie in one."""

# The first pattern that matches pip's last lines decides the message. Lost connections come before missing packages:
# without an index, pip's last line is that it found no version.
_REASONS = (
    (r"No space left on device|Errno 28|not enough space", "The disk is full. Free some space and start again."),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "The package index's certificate was refused. Behind a company proxy, set PIP_CERT to its certificate file.",
    ),
    (
        r"name resolution|NewConnectionError|getaddrinfo|Network is unreachable|Connection refused|ProxyError"
        r"|ReadTimeout|Read timed out|ConnectTimeout|ConnectionResetError|nodename nor servname",
        "The package index could not be reached. Check the connection (and HTTPS_PROXY, behind a proxy), then start "
        "again: it continues where it stopped. Without a connection, use --wheels DIR.",
    ),
    (
        r"Permission denied|Errno 13|Access is denied",
        "A folder could not be written. The log says which one; make it writable and start again.",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "The packages do not fit together: the activated environment or a pip constraint needs other versions. "
        "Leave the environment (deactivate) and start again: Monotile then makes its own.",
    ),
    (r"Python\.h: No such file", "Python's headers are missing, and a package needs them to be built."),
)


class PipFailed(SetupError):
    """pip ended with an error or ran out of its time."""


@dataclass
class _Follower:
    """Reads pip's lines and keeps one phrase that says what it is doing."""

    doing: str = "asking the index"
    _file: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=60))

    def read(self, line: str) -> str | None:
        """Read one line of pip's output; returns a phrase that deserves a line of its own, or None."""
        progress = re.match(r"Progress (\d+) of (\d+)", line)
        if progress:
            done, total = (int(part) for part in progress.groups())
            if total:
                self.doing = f"{self._file}: {done / 1e6:.0f} of {total / 1e6:.0f} MB"
            return None
        self.tail.append(line)
        download = re.match(
            r"\s*(?:Downloading|Using cached) (\S+?)(?:-(?:cp|py)\S*)?(?:\.tar\.gz)? \(([\d.]+) (\wB)\)", line
        )
        if download:
            name, amount, unit = download.groups()
            self._file = name.rsplit("/", 1)[-1].removesuffix(".whl")
            self.doing = f"{self._file}, {amount} {unit}"
            large = unit in ("MB", "GB") and (unit == "GB" or float(amount) >= 20)
            return f"downloading {self.doing}" if large and "Downloading" in line else None
        if line.startswith("Installing collected packages"):
            several = line.count(",")
            self.doing = f"unpacking {several + 1} packages" if several else "unpacking"
            return self.doing if several else None
        simple = re.match(r"\s*(Collecting|Building wheel for|Preparing metadata for) (\S+)", line)
        if simple:
            words = {"Collecting": "checking", "Building wheel for": "building", "Preparing metadata for": "reading"}
            self.doing = f"{words[simple[1]]} {simple[2]}"
        return None


@dataclass(frozen=True)
class Pip:
    """pip of one environment. `sources` are its index options, `log` keeps its whole output, `held` is the lock.

    compiles: whether pip writes the bytecode of what it installs; else `write_bytecode` does, on all cores.
    """

    python: Path
    version: str | None
    sources: tuple[str, ...]
    log: Path
    report: Report
    held: int
    compiles: bool = True

    def install(self, arguments: list[str], sources: tuple[str, ...] | None = None, limit_s: float = 0) -> None:
        """Run `pip install`, and show what it is doing.

        `sources` replaces the usual ones; `limit_s` seconds end it (0: no limit). Raises PipFailed with the
        reason, KeyboardInterrupt once pip has ended too.
        """
        options = ["--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar", self._progress()]
        options += [] if self.compiles else ["--no-compile"]
        index = self.sources if sources is None else sources
        line = [str(self.python), "-m", "pip", "install", *options, *index, *arguments]
        follower = _Follower()
        code = self._run(line, f"$ pip install {' '.join([*index, *arguments])}\n", follower, limit_s)
        if code:
            raise PipFailed(f"{reason(list(follower.tail), '--no-index' in index)}\nThe whole output is in {self.log}")

    def write_bytecode(self, folder: Path) -> None:
        """Compile the modules in `folder` on all cores; pip would do it on one, which takes most of its time.

        What can't be compiled is passed over, as pip passes it over. Nothing is lost where this is interrupted: Python
        then compiles each module when it is first imported.
        """
        line = [str(self.python), "-W", "ignore", "-m", "compileall"]
        line += ["-q", "-j", "0", "-x", re.escape(str(folder)) + ".*" + _NEVER_IMPORTED, str(folder)]
        self._run(line, "$ compileall\n", _Follower(doing="compiling the packages' modules"))

    def _run(self, line: list[str], title: str, follower: _Follower, limit_s: float = 0) -> int:
        """Run a command to its end and show what it is doing; returns its exit code. Whatever stops it ends it too."""
        started = time.monotonic()
        child = self._start(line)
        assert child.stdout is not None
        lines = _read_in_background(child.stdout)
        try:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(title)
                self._follow(lines, follower, log, started, limit_s)
            return child.wait()
        except BaseException:
            _end(child)
            raise

    def _follow(
        self, lines: queue.Queue[str | None], follower: _Follower, log: IO[str], started: float, limit_s: float
    ) -> None:
        while True:
            elapsed = time.monotonic() - started
            if limit_s and elapsed > limit_s:
                raise PipFailed(f"it took longer than {span(limit_s)}")
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                self.report.progress(f"      {follower.doing} ({span(elapsed)})")
                continue
            if line is None:
                return
            milestone = follower.read(line)
            if not line.startswith("Progress "):
                log.write(line + "\n")
            if milestone:
                self.report.line(f"      {milestone}")
            self.report.progress(f"      {follower.doing} ({span(elapsed)})")

    def _progress(self) -> str:
        numbers = re.findall(r"\d+", self.version or "")
        return "raw" if tuple(int(part) for part in numbers[:2]) >= _RAW_PROGRESS else "off"

    def _start(self, line: list[str]) -> subprocess.Popen[str]:
        # PIP_USER would send packages past the environment. Building takes memory: four compilers at most.
        environment = {
            **os.environ,
            "PIP_USER": "0",
            "PYTHONUNBUFFERED": "1",
            "MAX_JOBS": os.environ.get("MAX_JOBS", "4"),
        }
        settings: dict[str, object] = {"start_new_session": True, "pass_fds": (self.held,)}
        if os.name == "nt":
            settings = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        return subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            encoding="utf-8", errors="replace", env=environment, **settings,
        )  # fmt: skip


def _read_in_background(stream: IO[str]) -> queue.Queue[str | None]:
    """Lines of `stream` as they come, None at its end: reading must not stop the clock on the screen."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line.rstrip("\r\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _end(child: subprocess.Popen[str]) -> None:
    """End pip and what it started, such as compilers. It has its own process group, which Ctrl-C does not reach."""
    if child.poll() is not None:
        return
    if os.name == "nt":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(child.pid)], capture_output=True)
    else:
        os.killpg(child.pid, signal.SIGINT)
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        if os.name != "nt":
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def reason(tail: list[str], offline: bool) -> str:
    """Why pip failed, as one sentence, from its last lines. `offline`: it only used the folder of --wheels."""
    output = "\n".join(tail)
    for pattern, sentence in _REASONS:
        if re.search(pattern, output):
            return sentence
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing:
        where = "The folder given with --wheels" if offline else "The index"
        python = ".".join(str(part) for part in sys.version_info[:2])
        return f"{where} has no {missing[1]} that fits Python {python} on this system ({sys.platform})."
    errors = [line for line in tail if "ERROR" in line or line.lower().startswith("error:")]
    return errors[-1].split("ERROR:", 1)[-1].strip() if errors else "pip failed and gave no reason. See the log."
