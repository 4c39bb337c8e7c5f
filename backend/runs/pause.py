"""Lets a preview and a trainer take turns on one GPU: by two files in the run's ``control/``.

    pause       who asks the trainer to wait between two steps, and a word of its own
    paused      that word, while the trainer waits

The trainer waits as long as the file is there and the process in it lives.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from backend.base.files import open_file, write_atomic
from backend.base.jsonable import dumps
from backend.runs.paths import RunPaths
from backend.runs.process import ProcessId

ASKED, ANSWERED = "pause", "paused"
_TRIES, _BETWEEN_S = 20, 0.05


class Pause:
    """The wish that a run waits, and its answer. Cheap to make."""

    def __init__(self, run: RunPaths | Path) -> None:
        """Of a run, or of the control folder at a path."""
        folder = run.control_dir if isinstance(run, RunPaths) else Path(run)
        self._asked, self._answered = folder / ASKED, folder / ANSWERED
        self._word = ""

    def ask(self) -> None:
        """Ask the trainer to wait for this process. WriteFailed where the file can't be written."""
        self._asked.parent.mkdir(parents=True, exist_ok=True)
        self._word = secrets.token_hex(4)
        write_atomic(self._asked, dumps({**ProcessId.of(os.getpid()).to_record(), "word": self._word}))

    def release(self) -> None:
        """Let the trainer continue. OSError where that can't be written down; it continues when this process ends."""
        _remove(self._asked)

    def is_answered(self) -> bool:
        """Whether the trainer waits for the process that asked last here."""
        return self.is_asked() and _read(self._answered).get("word") == self._word

    def is_asked(self) -> bool:
        """Whether what was asked here still stands: a start of the run removes it, another process replaces it."""
        return bool(self._word) and _read(self._asked).get("word") == self._word

    def word(self) -> str | None:
        """For the trainer: the word of whoever asks it to wait; None where nobody does, or nobody is left who did."""
        # also while the disk does not answer, which Path.exists raises
        if not os.path.exists(self._asked):
            return None
        record = _read(self._asked)
        process = ProcessId.from_record(record)
        return str(record.get("word")) if process is not None and process.is_alive() else None

    def answer(self, word: str) -> None:
        """For the trainer: it waits. WriteFailed where the file can't be written."""
        write_atomic(self._answered, dumps({"word": word}))

    def end(self) -> None:
        """For the trainer: it continues. OSError where that can't be written down; the answer is to one word alone."""
        _remove(self._answered)


def _remove(path: Path) -> None:
    """Remove a file that another process looks at all the time: Windows refuses that while it is open."""
    for _ in range(_TRIES):
        try:
            path.unlink(missing_ok=True)
            return
        except PermissionError:
            time.sleep(_BETWEEN_S)
    path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as stream:
            data = json.loads(stream.read().decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
