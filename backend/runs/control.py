"""Carries requests from page and terminal to a trainer: a file each in ``control/``, seen within a step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from backend.base.files import write_atomic
from backend.base.jsonable import dumps
from backend.runs.paths import RunPaths
from backend.runs.pause import ANSWERED, ASKED

Request = Literal["stop", "save", "sample"]
REQUESTS: frozenset[str] = frozenset({"stop", "save", "sample"})


class Control:
    """The requests of one run. The same request twice counts once."""

    def __init__(self, run: RunPaths | str | Path) -> None:
        """Of a run, or of the control folder at a path (made at the first request)."""
        self.folder = run.control_dir if isinstance(run, RunPaths) else Path(run)

    def request(self, name: Request) -> None:
        """Ask the trainer to ``stop`` (it saves first), ``save`` now, or ``sample`` now.

        Raises:
            ValueError: no such request.
            WriteFailed: the file can't be written.
        """
        self._check(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / name, dumps({"t": time.time()}))

    def pending(self) -> set[str]:
        """Requests that are not cleared yet. It takes some microseconds, so that a trainer may look at every step."""
        try:
            return REQUESTS & set(os.listdir(self.folder))
        except FileNotFoundError:
            return set()

    def clear(self, name: Request) -> None:
        """Take a request back, or mark it as done."""
        self._check(name)
        (self.folder / name).unlink(missing_ok=True)

    def clear_all(self) -> None:
        """Remove the requests to an earlier process."""
        for name in (*REQUESTS, ASKED, ANSWERED):
            (self.folder / name).unlink(missing_ok=True)

    @staticmethod
    def _check(name: str) -> None:
        if name not in REQUESTS:
            raise ValueError(f"there is no request {name!r} to a run; known: {', '.join(sorted(REQUESTS))}")
