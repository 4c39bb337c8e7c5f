"""Holds the state of one import: our values so far, where each comes from, and the notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from backend.config.file_kinds import DATA_SETS, Kind
from backend.config.schema import by_path
from backend.families.table import FAMILIES
from backend.importers.datasets import Dataset, read_dataset
from backend.importers.family import family_of
from backend.importers.notes import Fate, Note, shown
from backend.importers.source import Source


class Say(Protocol):
    """Something that notes what became of a name."""

    def __call__(self, key: str, fate: Fate, why: str = "", path: str | None = None) -> None: ...


@dataclass
class Work:
    """values: names with values there. ours: our values by path. origin: the name there that each comes from.

    dataset: the data set file that belongs to it, which may be the file itself. data: all that it says.
    wanted: the family that the person names, for a file that tells none.
    """

    source: Source
    kind: Kind
    values: Mapping[str, Any]
    dataset: Source | None = None
    data: Dataset | None = None
    wanted: str = ""
    ours: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    full: bool = False
    """It trains the whole model, and no LoRA."""

    @classmethod
    def of(cls, source: Source, dataset: Source | None, wanted: str = "") -> Work:
        """Nothing is taken over yet. source: a file that could be read."""
        assert source.kind is not None
        alone = source.kind in DATA_SETS
        dataset = source if alone else dataset or source.dataset
        values = {} if alone else source.values
        named = family_of(source.kind, values)
        # a data set on its own names no family, and what is guessed of a file does not beat what a person names
        unsure = alone or bool(named.guessed) or named.family is None
        facts = FAMILIES.get((wanted if unsure else "") or named.family or "")
        videos = facts is not None and facts.video is not None
        data = read_dataset(dataset, videos) if dataset and dataset.kind == "dataset" else None
        return cls(source, source.kind, values, dataset, data, wanted, notes=list(source.read))

    @property
    def all_values(self) -> dict[str, Any]:
        """The names of the data set too, which rule over arguments of the same name."""
        return {**self.values, **(self.data.values if self.data else {})}

    @property
    def family(self) -> str:
        """The family that the file is for; empty where it is not known."""
        return str(self.ours.get("model.family", ""))

    @property
    def family_here(self) -> str:
        """The family that the settings are for in the end: where the file tells none, the one that is the default."""
        return self.family or self.wanted or str(by_path()["model.family"].default)

    def note(self, key: str, fate: Fate, why: str = "", path: str | None = None) -> None:
        """Say what became of a name."""
        called = self.source.names.get(key, key)
        self.notes.append(Note(called, fate, why, self.source.lines.get(key), path, shown(key, self.values.get(key))))

    def take(self, path: str, value: Any, key: str) -> None:
        """Have `path` hold a value that comes from the name `key`; what is said of it comes by itself."""
        self.ours[path], self.origin[path] = value, key

    def change(self, path: str, value: Any, key: str, why: str, fate: Fate = "near") -> None:
        """Give `path` another value than what it was taken over with, and say so in the place of that, or at the end.

        key: the name that the note has where nothing was taken over; the other program's default rules there.
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
