"""Measures what a page costs while tabs look at a long run: three tabs, twenty events a second, 500,000 steps."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import psutil

from backend.runs import supervise
from backend.runs.events import EventWriter
from backend.runs.events.kinds import PhaseEvent, StepTotalEvent, ValidationEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter

ROOT = Path(__file__).resolve().parents[2]
_EVENTS_A_SECOND = 20
_STARTS_S = 120.0


@dataclass
class Load:
    """What was measured. cpu_share: of one core, over `seconds`; slowest_s: the slowest answer to any tab."""

    steps: int
    tabs: int
    seconds: float
    cpu_share: float
    requests: int
    bytes: int
    slowest_s: float
    first_s: float
    errors: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        each_ms = 1000 * self.cpu_share * self.seconds / max(1, self.requests)
        return (
            f"{self.steps:,} steps, {self.tabs} tabs, {_EVENTS_A_SECOND} events a second, {self.seconds:.0f} s: "
            f"the page took {100 * self.cpu_share:.1f} % of a core; {self.requests} answers, "
            f"{each_ms:.1f} ms of CPU and {self.bytes / max(1, self.requests) / 1000:.1f} KB each, "
            f"the slowest {self.slowest_s:.2f} s, "
            f"the first chart {self.first_s:.2f} s, {len(self.errors)} failed"
        )


class Tab:
    """Asks as the Run tab of an open page does: a run's state and log each second, the list of runs every other."""

    def __init__(self, address: str, run: str) -> None:
        self.address, self.run = address, run
        self.key = self.seen = None
        self.offset = self.bytes = self.requests = 0
        self.slowest_s = self.first_s = 0.0
        self.errors: list[str] = []
        host, port = address.removeprefix("http://").rstrip("/").split(":")
        # Kept open from one request to the next, as a browser does.
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def get(self, path: str, **query: object) -> dict[str, Any]:
        begun = time.monotonic()
        query_string = urlencode({name: value for name, value in query.items() if value is not None})
        self._connection.request("GET", f"/{path}?{query_string}")
        body = self._connection.getresponse().read()
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        self.requests += 1
        self.bytes += len(body)
        return json.loads(body)

    def look(self, number: int = 0) -> None:
        answer = self.get("live", run=self.run, width=900, key=self.key, seen=self.seen, log_offset=self.offset)
        self.key, self.seen, self.offset = answer["key"], answer["seen"], answer["log"]["offset"]
        if number % 2 == 0:
            self.get("runs")

    def _work(self) -> None:
        number = 0
        while not self._over.wait(1.0):
            try:
                self.look(number)
            except (OSError, ValueError) as error:
                self.errors.append(str(error))
            number += 1


def measure(steps: int = 500_000, tabs: int = 3, seconds: float = 30.0) -> Load:
    """Make a run of `steps` rows that goes on, open a page on it, and take the page's CPU time while tabs poll."""
    with tempfile.TemporaryDirectory(prefix="monotile-load-") as folder:
        root = Path(folder) / "runs"
        run = long_run(root, steps)
        command = [sys.executable, "-m", "tests.reliability", "feed", str(run.path), str(steps)]
        supervise.start(None, run, command=command)
        page, address = open_page(Path(folder) / "data", root)
        try:
            return _measured(page, address, run, steps, tabs, seconds)
        finally:
            page.terminate()
            page.wait(30)
            supervise.stop(run, 10.0)


def _measured(page: subprocess.Popen, address: str, run: Run, steps: int, tabs: int, seconds: float) -> Load:
    open_tabs = [Tab(address, run.name) for _ in range(tabs)]
    begun = time.monotonic()
    open_tabs[0].look()
    first_s = time.monotonic() - begun
    for tab in open_tabs:
        tab.start()
        time.sleep(0.3)
    time.sleep(3)
    for tab in open_tabs:
        tab.requests = tab.bytes = 0
        tab.slowest_s = 0.0
    process = psutil.Process(page.pid)
    before, begun = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, took = process.cpu_times(), time.monotonic() - begun
    for tab in open_tabs:
        tab.stop()
    spent = (after.user + after.system) - (before.user + before.system)
    errors = [error for tab in open_tabs for error in tab.errors]
    return Load(
        steps,
        tabs,
        took,
        spent / took,
        sum(tab.requests for tab in open_tabs),
        sum(tab.bytes for tab in open_tabs),
        max(tab.slowest_s for tab in open_tabs),
        first_s,
        errors,
    )


def long_run(root: Path, steps: int) -> Run:
    """A run folder whose metrics hold `steps` rows."""
    run = Run.create_empty(root, "long")
    with MetricsWriter(run) as metrics:
        for step in range(1, steps + 1):
            metrics.add(
                step, loss=1.0 / step, loss_smooth=1.1 / step, lr=1e-4, s_per_step=0.05,
                vram_allocated=8_000_000_000 + step, vram_reserved=9_000_000_000, vram_peak=9_500_000_000,
                vram_others=1_000_000_000, ram=4_000_000_000 + step, graphs=4, recompiles=0,
            )  # fmt: skip
            if step % 50_000 == 0:
                metrics.flush(60)
    return run


def feed(path: str, first: str) -> None:
    """The trainer of the load test: twenty rows, twenty events and a line of log a second, until it is stopped."""
    from backend.runs.control import Control

    run, step, begun = Run(path), int(first), time.monotonic()
    run.attach()
    events, control = EventWriter(run), Control(run)
    events.write(StepTotalEvent(total=1_000_000))
    with MetricsWriter(run, 0, step) as metrics:
        while "stop" not in control.pending():
            step += 1
            metrics.add(step, loss=1.0 / step, loss_smooth=1.0, lr=1e-4, s_per_step=0.05, ram=4_000_000_000, graphs=4)
            if step % 100 == 0:
                events.write(ValidationEvent(step=step, set="held out", sigma_losses={"0.5": 0.4}, loss=0.4))
            else:
                events.write(PhaseEvent(phase="train", done=step, total=1_000_000, eta_s=None))
            if step % 20 == 0:
                with open(run.log_path, "a", encoding="utf-8") as stream:
                    stream.write(f"step {step}\n")
            time.sleep(max(0.0, begun + (step - int(first)) / _EVENTS_A_SECOND - time.monotonic()))
    run.finish("stopped", step=step)


def open_page(data: Path, root: Path) -> tuple[subprocess.Popen, str]:
    """A page's process that knows the runs folder `root`, and its address, once it answers."""
    (data / "page").mkdir(parents=True)
    (data / "page" / "places.json").write_text(json.dumps([str(root)]), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gui", "--no-browser", "--port", str(port), "--data", str(data)]
    page = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address, until = f"http://127.0.0.1:{port}/", time.monotonic() + _STARTS_S
    while time.monotonic() < until:
        try:
            with urlopen(f"{address}runs", timeout=5):
                return page, address
        except (URLError, OSError):
            time.sleep(0.2)
    page.kill()
    raise RuntimeError(f"the page did not answer within {_STARTS_S:.0f} s")
