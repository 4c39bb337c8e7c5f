"""Keeps the queue on disk: what page, terminal and the queue's own process share.

    queue.json        the entries in their order, and whether the queue is on
    ID.toml           the whole settings of an entry
    worker.json       the process that starts the entries, as in a run's run.json
    notify.json       a person's own command, run when an entry has ended
    log.txt           what the process says

Each change reads and writes queue.json under one lock, so that two tabs and the process never undo each other's.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.base.errors import WriteFailed
from backend.base.files import locked, open_file, write_atomic
from backend.base.jsonable import dumps
from backend.base.paths import PROJECT_ROOT
from backend.config import load, toml_io
from backend.config.schema import Config
from backend.queue.entries import ID, Entry, Queue
from backend.runs.process import ProcessId

log = logging.getLogger(__name__)

_DEFAULT_PLACE = PROJECT_ROOT / "runs" / ".page"


class QueueFolder:
    """The folder of one queue. Cheap to make; holds nothing open."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.queue_path = self.path / "queue.json"
        self.worker_path = self.path / "worker.json"
        self.notify_path = self.path / "notify.json"
        self.log_path = self.path / "log.txt"
        self.lock_path = self.path / ".lock"
        self.worker_lock_path = self.path / ".worker.lock"
        self.places_path = self.path.parent / "places.json"

    @classmethod
    def of_page(cls, place: Path = _DEFAULT_PLACE) -> QueueFolder:
        """That of the page which keeps its own files at `place`."""
        return cls(place / "queue")

    def read(self) -> Queue:
        """The queue as it is; an empty one where there is none."""
        return Queue.from_json(_read(self.queue_path))

    def update(self, change: Callable[[Queue], Queue]) -> Queue:
        """Change the queue under its lock; the queue as it then is. Raises WriteFailed, and whatever `change` does.

        A file that can't be read as a queue is kept beside the new one.
        """
        self._make()
        with locked(self.lock_path):
            return self.update_locked(change)

    def update_locked(self, change: Callable[[Queue], Queue]) -> Queue:
        """As `update`, for who holds the lock already."""
        if self.queue_path.exists() and not _is_readable(self.queue_path):
            kept = self.queue_path.with_name(f"queue-unreadable-{time.time_ns()}.json")
            os.replace(self.queue_path, kept)
            log.warning("%s can't be read. It is kept as %s.", self.queue_path, kept)
        before = self.read()
        after = change(before)
        if after != before:
            write_atomic(self.queue_path, dumps(after.to_json()))
            for gone in {entry.id for entry in before.entries} - {entry.id for entry in after.entries}:
                self.config_path(gone).unlink(missing_ok=True)
        return after

    def add(self, config: Config, gpu: str | None = None) -> Entry:
        """Put a run at the end of the queue. Raises WriteFailed."""
        self._make()
        identity = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        entry = Entry(id=identity, name=config.saving.output_name, added=time.time(), gpu=gpu)
        toml_io.dump(config, self.config_path(identity), whole=True)
        try:
            self.update(lambda queue: replace(queue, entries=(*queue.entries, entry)))
        except BaseException:
            self.config_path(identity).unlink(missing_ok=True)
            raise
        return entry

    def config_path(self, identity: str) -> Path:
        """The settings of an entry. ValueError for what is no id."""
        if not ID.fullmatch(identity):
            raise ValueError(f"{identity!r} is no entry of a queue")
        return self.path / f"{identity}.toml"

    def config(self, identity: str) -> load.Loaded:
        """The settings of an entry, with their problems. They never change, so that they are read once."""
        path = self.config_path(identity)
        return _read_config(path) if path.is_file() else load.load(path)

    def process(self) -> ProcessId | None:
        """The newest process of the queue, alive or not."""
        return ProcessId.from_record(_read(self.worker_path))

    def is_alive(self) -> bool:
        """Whether the queue's process is there."""
        process = self.process()
        return process is not None and process.is_alive()

    def roots(self) -> list[Path]:
        """Folders of runs: those that the page has started runs in, and those of the entries."""
        try:
            kept = json.loads(self.places_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = []
        own = [Path(entry.run).parent for entry in self.read().entries if entry.run is not None]
        return list(dict.fromkeys([*own, *(Path(str(place)) for place in (kept if isinstance(kept, list) else ()))]))

    def command(self) -> list[str]:
        """A person's own command for the end of an entry; empty where there is none."""
        words = _read(self.notify_path).get("command")
        return [str(word) for word in words] if isinstance(words, list) else []

    def set_command(self, words: list[str]) -> None:
        """Keep that command; none when empty. Raises WriteFailed."""
        self._make()
        write_atomic(self.notify_path, dumps({"command": words}))

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"{self.path} can't be made: {error.strerror or error}."
            raise WriteFailed(text, "Free some space there.", error.errno) from error


@lru_cache(maxsize=256)
def _read_config(path: Path) -> load.Loaded:
    return load.load(path)


def _is_readable(path: Path) -> bool:
    """Whether a queue's file holds a list of entries. WriteFailed where it can't be opened: it is left as it is."""
    try:
        with open_file(path) as stream:
            data = json.loads(stream.read().decode("utf-8"))
    except OSError as error:
        text = f"{path} can't be opened: {error.strerror or error}."
        raise WriteFailed(text, "Close the program that holds it, then try again.", error.errno) from error
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and isinstance(data.get("entries"), list)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError), open_file(path) as stream:
        data = json.loads(stream.read().decode("utf-8"))
        if isinstance(data, dict):
            return data
    return {}
