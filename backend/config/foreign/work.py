"""One file on its way: our values so far, where each comes from, and what was said of each name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backend.config.foreign.notes import Fate, Note, shown
from backend.config.foreign.source import Kind, Source


@dataclass
class Work:
    """values: names with values there. ours: our values by path. origin: the name there that each comes from."""

    source: Source
    kind: Kind
    values: Mapping[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    @property
    def family(self) -> str:
        """The family that the file is for; empty where it can't be told."""
        return str(self.ours.get("model.family", ""))

    def note(self, key: str, fate: Fate, why: str = "", path: str | None = None) -> None:
        """Say what became of a name."""
        self.notes.append(Note(key, fate, why, self.source.lines.get(key), path, shown(key, self.values.get(key))))

    def take(self, path: str, value: Any, key: str) -> None:
        """Have `path` hold a value that comes from the name `key`; what is said of it comes by itself."""
        self.ours[path], self.origin[path] = value, key

    def change(self, path: str, value: Any, key: str, why: str, fate: Fate = "near") -> None:
        """Give `path` another value than what it was taken over with, and say so in the place of that, or at the end.

        key: the name that it is told of where nothing was taken over; the other program's default rules there.
        """
        self.take(path, value, self.origin.get(path, key))
        for index, note in enumerate(self.notes):
            if note.path == path and note.fate in ("taken", "near", "default"):
                self.notes[index] = replace(note, fate="default" if note.fate == "default" else fate, why=why)
                return
        self.notes.append(Note(key, "default", why, None, path))

    def drop(self, path: str, fate: Fate, why: str) -> None:
        """Take a value back, and say why in the place of what was said of it."""
        key = self.origin[path]
        del self.ours[path]
        for index, note in enumerate(self.notes):
            if note.path == path and note.fate in ("taken", "near", "default"):
                self.notes[index] = replace(note, fate=fate, why=why, path=None)
        if all(note.why != why for note in self.notes):
            self.note(key, fate, why)
