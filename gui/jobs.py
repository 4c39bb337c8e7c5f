"""Runs long work outside the page's process: each job is a subprocess whose JSON lines a thread reads."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backend.base.paths import PROJECT_ROOT

log = logging.getLogger(__name__)

State = str  # "idle", "running", "done", "failed", "cancelled"


class Job:
    """One kind of work, at most once at a time. Any thread may read its state."""

    def __init__(self) -> None:
        self.state: State = "idle"
        self.number = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        line: Callable[[dict[str, Any]], None],
        end: Callable[[int, str], bool],
    ) -> bool:
        """Run ``python -m module arguments`` in the project; False when this job is already at work.

        line: called with each JSON object that the process writes to its standard output. end: called with the exit
        code and the last of its error output; returns whether the job has succeeded.
        """
        with self._lock:
            if self.state == "running":
                return False
            command = [sys.executable, "-m", module, *arguments]
            # An argument list and no shell: paths may hold anything.
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
            self.state = "running"
            self.number += 1
            threading.Thread(
                target=self._follow, args=(self._process, line, end), name=f"job {module}", daemon=True
            ).start()
            return True

    @property
    def is_ending(self) -> bool:
        """Whether work that was cancelled is still at its end."""
        return self.state == "cancelled" and self._process is not None and self._process.poll() is None

    def cancel(self) -> None:
        """Stop the work, if there is any."""
        with self._lock:
            if self._process is not None and self.state == "running":
                self.state = "cancelled"
                self._process.terminate()

    def _follow(
        self,
        process: subprocess.Popen[str],
        line: Callable[[dict[str, Any]], None],
        end: Callable[[int, str], bool],
    ) -> None:
        errors: list[str] = []
        assert process.stdout is not None and process.stderr is not None
        stderr = process.stderr
        # Read together with the output: a full error pipe would stop the process.
        reader = threading.Thread(target=lambda: errors.extend(stderr.readlines()), daemon=True)
        reader.start()
        succeeded = False
        try:
            for text in process.stdout:
                try:
                    document = json.loads(text)
                except ValueError:
                    continue
                if isinstance(document, dict):
                    line(document)
            code = process.wait()
            reader.join(timeout=5)
            succeeded = end(code, "".join(errors[-20:]).strip())
        except Exception:
            # An error while reading the result must not leave the job "running" for ever.
            log.exception("A background job could not be followed to its end")
        with self._lock:
            # work that was cancelled may end after the next one began
            if self.state == "running" and self._process is process:
                self.state = "done" if succeeded else "failed"
