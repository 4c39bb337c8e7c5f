"""Keeps a run's folder whole while its trainer works: gives a sign of life, and makes again what others deleted.

It runs in the trainer, in a thread of its own. Without it a run whose folder is deleted would train on into nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from backend.base.files import write_atomic
from backend.runs import record
from backend.runs.events import EventWriter
from backend.runs.events.kinds import WarningEvent
from backend.runs.folder import Run
from backend.runs.liveness import BEAT_S
from backend.runs.logsetup import log_to_path_again

log = logging.getLogger(__name__)

_LOOK_S = 1.0


class Keeper:
    """Of one run, from `Run.attach` to its end, as a context manager.

    What was only appended to (events, log) is held open, so that its text outlives the file; record and settings are
    kept in memory. Metrics come back by their own writer. Samples, LoRA files and states that were deleted are lost;
    the next ones are written as before.
    """

    def __init__(self, run: Run, events: EventWriter, look_s: float = _LOOK_S, beat_s: float = BEAT_S) -> None:
        """events: receive a warning of what was made again.

        look_s: seconds between two looks. beat_s: seconds between two signs of life.
        """
        self._run = run
        self._events = events
        self._look_s, self._beat_s = look_s, beat_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="keeper", daemon=True)
        self._appended: dict[Path, BinaryIO] = {}
        self._record: dict = {}
        self._config: bytes | None = None
        self._log: os.stat_result | None = None
        self._beat_at = float("-inf")

    def __enter__(self) -> Keeper:
        self._beat()
        self._remember()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        # What the end itself writes needs the folder too.
        self.look()
        for stream in self._appended.values():
            stream.close()

    def look(self) -> None:
        """Look once whether all is there; called by the thread, and by whoever can't wait for it."""
        try:
            if not self._is_whole():
                self._make_again()
            self._remember()
            if time.monotonic() - self._beat_at >= self._beat_s:
                self._beat()
                self._correct()
        except OSError as error:
            log.debug("the folder of %s can't be kept now: %s", self._run.name, error)

    def _is_whole(self) -> bool:
        """False when the folder, or one of the files that only grow, is another than it was.

        A save may have made the folder again by itself, so that it being there says nothing.
        """
        word = self._record.get("start")
        if word is not None and record.read(self._run.record_path).get("start") != word:
            return False
        return self._run.state_dir.is_dir() and all(map(_is_at, self._appended.values(), self._appended))

    def _work(self) -> None:
        while not self._over.wait(self._look_s):
            self.look()

    def _beat(self) -> None:
        """Refresh the time of the file by which other machines know that this run lives."""
        with suppress(OSError):
            self._run.alive_path.touch()
            os.utime(self._run.alive_path)
            self._beat_at = time.monotonic()

    def _correct(self) -> None:
        """Take back that the run is dead, where somebody who could not see this process wrote so."""

        def change(current: dict) -> dict | None:
            if current.get("state") != "dead" or current.get("pid") != os.getpid():
                return None
            return {key: value for key, value in current.items() if key not in ("state", "ended", "error", "result")}

        record.update(self._run.record_path, change)

    def _remember(self) -> None:
        self._record = record.read(self._run.record_path) or self._record
        with suppress(OSError):
            self._config = self._run.config_path.read_bytes()
        with suppress(OSError):
            self._log = os.stat(self._run.log_path)
        for path in (self._run.events_path, self._run.log_path):
            if path not in self._appended:
                with suppress(OSError):
                    self._appended[path] = open(path, "rb")  # noqa: SIM115 - held for as long as the run lasts

    def _make_again(self) -> None:
        run = self._run
        run.make_folders()
        record.update(run.record_path, lambda current: self._record | current)
        if self._config is not None and not run.config_path.exists():
            write_atomic(run.config_path, self._config)
        for path, stream in list(self._appended.items()):
            if not _is_at(stream, path):
                stream.seek(0)
                # what was written since into a new file of that name comes after what is remembered
                since = path.read_bytes() if path.exists() else b""
                write_atomic(path, stream.read() + since)
                del self._appended[path]
                stream.close()
        if self._log is not None:
            log_to_path_again(run, self._log)
        self._beat()
        text = f"The run's folder {run.path}, or files in it, were deleted or moved during training, and made again."
        remedy = "Samples, LoRA files and states that were in it are lost; the next ones are saved here as before."
        log.warning("%s %s", text, remedy)
        self._events.write(WarningEvent(text=text, remedy=remedy))


def _is_at(stream: BinaryIO, path: Path) -> bool:
    """True when the open file is the one that lies at `path`."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(path))
    except OSError:
        return False
