"""Reads settings of other trainers for the page: what would change, and what becomes of each name."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.config import presets
from backend.config.file_kinds import DATA_SETS, NAMES_OF_DATA_SETS, TITLES, is_of_another
from backend.config.formats import decode
from backend.config.load import Loaded, load
from backend.importers.convert import Converted, convert
from backend.importers.notes import HEADINGS, NO_NAMES, Note
from backend.importers.source import read_raw
from gui import form

_NOT_IN_FILES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]+')
_REST = "Settings that it does not have are set to their defaults."


@dataclass(frozen=True)
class OwnSettings:
    """A file of ours that was read and not loaded yet."""

    name: str
    content: bytes
    loaded: Loaded

    def kept_values(self, now: form.Values) -> form.Values:
        """Values of the form, `now`, that stay: none."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What the page shows with the difference."""
        return {"kind": TITLES["monotile"], "rest": _REST, "groups": [], "off": [], "wantsDataset": False, "own": True}

    def save(self, shelf: presets.Shelf) -> presets.Preset:
        """Keep the file as a preset, as it is. WriteFailed when it can't be written."""
        with _file_of(self.name, self.content) as path:
            preset = presets.import_(path, None, shelf).preset
        assert preset is not None, "files with errors are not shown"
        return preset


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
        rest = "All other settings stay as they are." if self.of_data else _REST
        kind = self.converted.title
        return {"kind": kind, "rest": rest, "groups": groups, "off": off, "wantsDataset": wants, "own": False}


def _line(note: Note) -> dict[str, Any]:
    """A note as the page shows it: about and why are translated there, the name with its value stays as in the file."""
    named = note.key not in NO_NAMES
    name = f"{note.key}{note.value}" if named else note.value.strip()
    return {"line": note.line, "about": "" if named else note.key, "name": name, "why": note.why}


def is_foreign(content: bytes) -> bool:
    """Whether a file is another program's. One of ours with mistakes is not, so that its errors are shown by line."""
    document = decode(content)
    return document.form != "toml" or is_of_another(document)


def read_own(name: str, content: bytes) -> OwnSettings:
    """Read a file of ours, as sent by the page."""
    with _file_of(name, content) as path:
        return OwnSettings(name, content, load(path))


@contextmanager
def _file_of(name: str, content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{_NOT_IN_FILES.sub('-', name).strip(' .')[:80] or 'imported'}.toml"
        path.write_bytes(content)
        yield path


def read(name: str, content: bytes, dataset: bytes | None = None, family: str = "") -> ForeignSettings:
    """Convert both files, as sent by the page. family: the one chosen there, for a dataset that has none."""
    source = read_raw(content)
    of_data = source.kind in DATA_SETS
    converted = convert(source, None if dataset is None else read_raw(dataset), family if of_data else "")
    return ForeignSettings(name, converted, dataset is not None, of_data)
