"""Reads settings of other trainers for the page: what would change, and what becomes of each name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backend.config.file_kinds import DATA_SETS, NAMES_OF_DATA_SETS, is_of_another
from backend.config.formats import decode
from backend.config.load import Loaded
from backend.importers.convert import Converted, convert
from backend.importers.notes import HEADINGS, NO_NAMES, Note
from backend.importers.source import read_raw
from gui import form


@dataclass(frozen=True)
class ForeignSettings:
    """A file of another trainer that was read and not loaded yet."""

    name: str
    converted: Converted
    with_dataset: bool
    """Whether its dataset file was read with it."""
    of_data: bool
    """Whether it describes a dataset and nothing else."""

    @property
    def loaded(self) -> Loaded:
        """Our settings."""
        return self.converted.loaded

    def kept_values(self, now: form.Values) -> form.Values:
        """Values of the form, `now`, that stay: for a dataset file, all that it does not set."""
        if not self.of_data or self.loaded.config is None:
            return {}
        converted, defaults = form.to_values(self.loaded.config), form.defaults()
        silent = (p for p in converted if not p.startswith("dataset.") and converted[p] == defaults[p])
        return {path: now[path] for path in silent}

    def facts(self) -> dict[str, Any]:
        """What the page shows with the difference."""
        groups = []
        for heading, fates in HEADINGS:
            notes = self.converted.with_fate(*fates)
            if notes:
                groups.append({"title": heading, "notes": [_line(note) for note in notes]})
        off = [note.key for note in self.converted.with_fate("off")]
        wants = not self.with_dataset and any(
            note.key.removeprefix("--") in NAMES_OF_DATA_SETS for note in self.converted.with_fate("not offered")
        )
        rest = (
            "All other settings stay as they are."
            if self.of_data
            else "Settings that it does not have are set to their defaults."
        )
        kind = self.converted.title
        return {"kind": kind, "rest": rest, "groups": groups, "off": off, "wantsDataset": wants}


def _line(note: Note) -> dict[str, Any]:
    """A note as the page shows it: about and why are translated there, the name with its value stays as in the file."""
    named = note.key not in NO_NAMES
    name = f"{note.key}{note.value}" if named else note.value.strip()
    return {"line": note.line, "about": "" if named else note.key, "name": name, "why": note.why}


def is_foreign(content: bytes) -> bool:
    """Whether a file is another program's. One of ours with mistakes is not, so that its errors are shown by line."""
    document = decode(content)
    return document.form != "toml" or is_of_another(document)


def read(name: str, content: bytes, dataset: bytes | None = None, family: str = "") -> ForeignSettings:
    """Convert both files, as sent by the page. family: the one chosen there, for a dataset that has none."""
    source = read_raw(content)
    of_data = source.kind in DATA_SETS
    converted = convert(source, None if dataset is None else read_raw(dataset), family if of_data else "")
    return ForeignSettings(name, converted, dataset is not None, of_data)
