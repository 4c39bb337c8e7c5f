"""How page and terminal speak to a trainer: a file each in the run's ``control/`` folder, seen within a step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from backend.base.files import write_atomic
from backend.base.jsonable import dumps

if TYPE_CHECKING:
    from backend.runs.folder import Run

Request = Literal["stop", "save", "sample"]
REQUESTS: frozenset[str] = frozenset({"stop", "save", "sample"})


class Control:
    """The requests of one run. Asking twice is asking once."""

    def __init__(self, run: Run | str | Path) -> None:
        """Of a `Run`, or of the control folder at a path (made when something is asked)."""
        self.folder = Path(run) if isinstance(run, str | Path) else run.control_dir

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
        """What is asked for and not yet cleared; costs some microseconds, so that a trainer may ask at every step."""
        try:
            return REQUESTS & set(os.listdir(self.folder))
        except FileNotFoundError:
            return set()

    def clear(self, name: Request) -> None:
        """Take a request back, or mark it as done."""
        self._check(name)
        (self.folder / name).unlink(missing_ok=True)

    def clear_all(self) -> None:
        """Forget what was asked of an earlier process."""
        for name in REQUESTS:
            (self.folder / name).unlink(missing_ok=True)

    @staticmethod
    def _check(name: str) -> None:
        if name not in REQUESTS:
            raise ValueError(f"a run can't be asked to {name!r}; known: {', '.join(sorted(REQUESTS))}")
