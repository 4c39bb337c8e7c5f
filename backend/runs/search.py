"""Finds runs by words: name, tags, notes, base model, family, state, and settings such as ``rank 16``.

What a run is searched by is read once and kept until one of its files changes.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from backend.base.files import open_file
from backend.config.schema import Setting, settings
from backend.families.table import FAMILIES
from backend.runs.errors import RunError
from backend.runs.folder import Run
from backend.runs.notes import FILE, Notes, read_notes

_WORD = re.compile(r'(?:[^\s"]+|"[^"]*"?)+')
_LARGEST = 2_000_000
_PAIR = re.compile(r"^([\w. -]+?)\s*[=:]\s*(.+)$")
STATES = {
    "starting": "starting at work",
    "running": "running at work",
    "stopping": "stopping at work",
    "done": "finished done",
    "stopped": "stopped",
    "failed": "failed",
    "dead": "ended unexpectedly dead",
}
"""State -> words that it is searched by."""


@dataclass(frozen=True)
class RunText:
    """What a run is searched by, apart from its state."""

    text: str
    """Name, tags, notes, base model, family and the texts among its settings, in lower case."""
    values: Mapping[str, Any]
    """Settings that the run's file names: path -> value."""
    notes: Notes = field(default_factory=Notes)
    complaint: str = ""
    """Why its notes can't be read."""


class RunIndex:
    """The texts of runs, each read again when its settings or notes have changed. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[object, RunText]] = {}

    def text(self, run: Run) -> RunText:
        """What this run is searched by."""
        mark = tuple(_changed_at(path) for path in (run.config_path, run.path / FILE))
        with self._lock:
            kept = self._kept.get(run.path)
        if kept is None or kept[0] != mark:
            kept = (mark, read_text(run))
            with self._lock:
                self._kept[run.path] = kept
        return kept[1]

    def knows(self, run: Run) -> bool:
        """Whether the run was read before, so that another look is quick."""
        return run.path in self._kept

    def keep_only(self, runs: Iterable[Run]) -> None:
        """Forget all other runs: those that were deleted or renamed."""
        paths = {run.path for run in runs}
        with self._lock:
            for path in self._kept.keys() - paths:
                del self._kept[path]


def read_text(run: Run) -> RunText:
    """Read what a run is searched by. What can't be read is left out."""
    values = _values(run)
    notes, complaint = Notes(), ""
    try:
        notes = read_notes(run)
    except RunError as error:
        complaint = str(error)
    family = FAMILIES.get(str(values.get("model.family")))
    tags = (f"#{tag} {tag}" for tag in notes.tags)
    texts = (value for value in values.values() if isinstance(value, str) and len(value) < 500)
    parts = (run.name, *tags, notes.text, "" if family is None else family.title, *texts)
    return RunText("\n".join(parts).casefold(), values, notes, complaint)


@dataclass(frozen=True)
class Query:
    """A person's words, taken apart. A run matches when each of them does."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Query:
        """Words with spaces between them; several in double quotes are one."""
        words = (word.replace('"', "") for word in _WORD.findall(text[:500].casefold()))
        return cls(tuple(word for word in words if word.strip()))

    def matches(self, run: RunText, state: str) -> bool:
        """Whether each word is in the run's text or state, or is with the next one a setting and its value."""
        left = list(self.words)
        while left:
            word = left.pop(0)
            pair = _PAIR.match(word)
            if taken := _words_of_setting(run, word, left):
                del left[:taken]
            elif pair and _named(run, pair[1].strip(), pair[2], state):
                continue
            elif left and word in _setting_words() and _is_value(left[0]):
                # "rank 16" means the two together, also in a note
                if f"{word} {left.pop(0)}" not in run.text:
                    return False
            elif word not in run.text and word not in STATES.get(state, state):
                return False
        return True


def _words_of_setting(run: RunText, word: str, after: list[str]) -> int:
    """How many words behind `word` are with it a setting's name and its value in this run; 0 where they are none."""
    for count in range(1, min(4, len(after)) + 1):
        if _is_setting(run, " ".join((word, *after[: count - 1])), after[count - 1]):
            return count
    return 0


def _named(run: RunText, name: str, value: str, state: str) -> bool:
    """``tag:portrait``, ``state:done``, ``rank=16``."""
    if name in ("tag", "tags"):
        return any(value.lstrip("#") in tag.casefold() for tag in run.notes.tags)
    if name == "state":
        return value in STATES.get(state, state)
    if name in ("note", "notes"):
        return value in run.notes.text.casefold()
    return _is_setting(run, name, value)


def _is_setting(run: RunText, name: str, value: str) -> bool:
    return any(
        setting.path in run.values and _equal(run.values[setting.path], value)
        for setting in _setting_words().get(name, ())
    )


def _is_value(word: str) -> bool:
    """Whether a word can only be a value: a number, or on and off."""
    with suppress(ValueError):
        float(word)
        return True
    return word in ("true", "false", "on", "off", "yes", "no")


def _equal(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted in (("true", "on", "yes") if value else ("false", "off", "no"))
    if isinstance(value, int | float):
        with suppress(ValueError):
            return float(wanted) == value
        return False
    if isinstance(value, str):
        return wanted in value.casefold()
    return isinstance(value, list) and wanted in str(value).casefold()


@cache
def _setting_words() -> dict[str, tuple[Setting, ...]]:
    """Each name that a setting goes by: its own, those of other trainers, its label, and the words of the label."""
    names: dict[str, dict[str, Setting]] = {}
    for setting in settings():
        label = setting.label.casefold()
        words = re.findall(r"[^\W_]{3,}", label)
        for name in (setting.path, setting.name, label, *words, *setting.aliases):
            names.setdefault(name.casefold(), {})[setting.path] = setting
    return {name: tuple(each.values()) for name, each in names.items()}


def _values(run: Run) -> dict[str, Any]:
    """The plain values of the run's settings, line by line: reading TOML as a whole takes thirty times as long.

    The trainer's own file has one setting a line. A value of several lines, and rows of tables, are left out.
    """
    values: dict[str, Any] = {}
    section = ""
    try:
        with open_file(run.config_path) as stream:
            text = stream.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return {}
    for line in text.splitlines():
        if line.startswith("["):
            section = "" if line.startswith("[[") else line.strip("[] ")
            continue
        name, equals, source = line.partition(" = ")
        if equals and section and not name.startswith("#"):
            values[f"{section}.{name.strip()}"] = _value(source.strip())
    return values


def _value(source: str) -> Any:
    """A value as TOML has it on one line; the text itself where it is none of the plain kinds."""
    if source.startswith("'") and source.endswith("'"):
        return source[1:-1]
    try:
        # numbers, texts, lists, true and false are written alike
        return json.loads(source)
    except ValueError:
        return source


def _changed_at(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
