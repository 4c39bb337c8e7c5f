"""Runs the bench's worker processes: one alone, or several that start together and are timed one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.bench.variants import Spec
from backend.memory.allocators import use_expandable_segments

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 1800
Answer = dict[str, Any]


class Worker:
    """A measurement in a process of its own, killed after `timeout` seconds; its log goes to our stderr."""

    def __init__(self, spec: Spec, timeout: float = LONGEST_SECONDS) -> None:
        command = [sys.executable, "-m", "backend.bench.worker", json.dumps(spec.to_dict())]
        pipe, environment = subprocess.PIPE, dict(os.environ)
        use_expandable_segments(environment)  # as in training, or its peaks would be others
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True, encoding="utf-8"
        )
        self._late = False
        self._timeout = timeout
        self._timer = threading.Timer(timeout, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        self._answer: Answer | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process where it still runs, as when the bench is interrupted."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()

    def ready(self) -> None:
        """Wait until the process waits for its turn, or has ended without one."""
        self._read('{"ready"')

    def go(self) -> None:
        """Give the process its turn."""
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except OSError:
            return  # It has ended: its answer says why.

    def answer(self) -> Answer:
        """Wait for the end; what the process measured, or why it did not."""
        self._read("\0")
        code = self._process.wait()
        if self._late:
            return {"ok": False, "error": f"no end within {self._timeout:.0f} s", "process_s": self._timeout}
        if self._answer is None:
            return {"ok": False, "error": f"the process ended with exit code {code}", "process_s": 0.0}
        return self._answer

    def _read(self, until: str) -> None:
        """Read lines up to one that begins with `until`, or the last, and keep the answer among them."""
        for line in self._process.stdout or ():
            if line.startswith('{"ok"'):
                self._answer = json.loads(line)
            if line.startswith(until):
                return


def run_worker(spec: Spec, timeout: float = LONGEST_SECONDS) -> Answer:
    """One measurement in a process of its own."""
    with Worker(spec, timeout) as worker:
        return worker.answer()


def run_together(specs: Sequence[Spec], timeout: float, done: Callable[[Spec, Answer], object]) -> None:
    """Compile and warm up all at once, then time one after another, the others idle; `done` gets each answer.

    Their start and compile times mean nothing and are not measured.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(replace(spec, gated=True), timeout)) for spec in specs]
        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(Worker.ready, workers))
        for spec, worker in zip(specs, workers, strict=True):
            worker.go()
            done(spec, worker.answer())
