"""Keeps what caption files held before they were changed, so that changes can be undone, in a journal on the disk.

A journal is one file of JSON lines for each set of changes: first what they are, then each file with its bytes before
and after. Beside it lies what became of it: applied or undone. Without that, the changes were cut off.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from backend.base.errors import Refused
from backend.base.files import locked, write_atomic
from backend.base.paths import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "runs" / ".page" / "caption_changes"
"""Where the page and the commands keep theirs."""
KEEP = 50
"""Sets of changes that can be undone; older ones are removed."""
_VERSION = 1
_UNKNOWN = "These changes are not kept any more, so they can't be undone"

State = Literal["cut off", "applied", "undone"]


@dataclass(frozen=True, slots=True)
class Kept:
    """A file and its bytes before and after a change; None: there is no file."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A set of changes. at: seconds since 1970."""

    id: str
    what: str
    files: int
    at: float
    state: State


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal in a folder."""

    folder: Path

    @classmethod
    def at(cls, folder: Path | None = None) -> Journal:
        """The journal in `folder`, or that of the page."""
        return cls(folder or FOLDER)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold it, so that one process at a time changes captions. WriteFailed as `files.locked`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock"):
            yield

    def begin(self, what: str, files: Sequence[Kept]) -> str:
        """Keep the bytes of `files`; returns the id. WriteFailed when they can't be kept."""
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{time.time_ns() % 10**9:09d}"
        self._keep(name, what, now, files)
        return name

    def shorten(self, name: str, what: str, files: Sequence[Kept]) -> None:
        """Keep only these of the files of changes that were stopped. WriteFailed when that can't be written."""
        self._keep(name, what, time.time(), files)

    def _keep(self, name: str, what: str, at: float, files: Sequence[Kept]) -> None:
        head = {"version": _VERSION, "what": what, "files": len(files), "at": at}
        rows = ({"path": str(f.path), "before": _packed(f.before), "after": _packed(f.after)} for f in files)
        write_atomic(self._file(name), "\n".join(json.dumps(row) for row in (head, *rows)))

    def end(self, name: str, state: State) -> None:
        """Say what became of the changes, and remove the oldest ones."""
        write_atomic(self._state_file(name), state)
        for old in self._names()[:-KEEP]:
            self.drop(old)

    def drop(self, name: str) -> None:
        """Forget changes."""
        for path in (self._file(name), self._state_file(name)):
            path.unlink(missing_ok=True)

    def read(self, name: str) -> list[Kept]:
        """The files of changes. Refused when they are not kept, or were undone."""
        if name not in self._names():
            raise Refused(_UNKNOWN, "Change the captions again.")
        if self._state(name) == "undone":
            raise Refused("These changes are undone already", "")
        rows = (json.loads(line) for line in self._file(name).read_text("utf-8").split("\n")[1:])
        return [Kept(Path(row["path"]), _unpacked(row["before"]), _unpacked(row["after"])) for row in rows]

    def entries(self) -> list[JournalEntry]:
        """All sets of changes, the newest first."""
        entries = []
        for name in reversed(self._names()):
            with contextlib.suppress(OSError, ValueError, KeyError), open(self._file(name), encoding="utf-8") as stream:
                head: dict[str, Any] = json.loads(stream.readline())
                state = self._state(name)
                entries.append(JournalEntry(name, head["what"], head["files"], head["at"], state))
        return entries

    def newest(self) -> JournalEntry | None:
        """The newest changes that are not undone."""
        return next((entry for entry in self.entries() if entry.state != "undone"), None)

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.jsonl"))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _state_file(self, name: str) -> Path:
        return self.folder / f"{name}.state"

    def _state(self, name: str) -> State:
        try:
            text = self._state_file(name).read_text("utf-8")
        except OSError:
            return "cut off"
        return "undone" if text == "undone" else "applied"


def _packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
