"""Brings settings of other trainers over for the page: what would change, and what became of each name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backend.config.file_kinds import DATA_SETS, NAMES_OF_DATA_SETS, is_of_another
from backend.config.formats import decode
from backend.config.load import Loaded
from backend.importers.convert import Converted, convert
from backend.importers.report import HEADINGS
from backend.importers.source import read_raw
from gui import form


@dataclass(frozen=True)
class Brought:
    """A file that was brought over and not taken yet. of_data: it describes pictures and nothing else."""

    name: str
    converted: Converted
    with_dataset: bool
    of_data: bool

    @property
    def loaded(self) -> Loaded:
        """Our settings."""
        return self.converted.loaded

    def given(self, now: form.Values) -> form.Values:
        """Values of the form, `now`, that stay: of a data set file, all that it says nothing about."""
        if not self.of_data or self.loaded.config is None:
            return {}
        brought, defaults = form.to_values(self.loaded.config), form.defaults()
        silent = (p for p in brought if not p.startswith("dataset.") and brought[p] == defaults[p])
        return {path: now[path] for path in silent}

    def facts(self) -> dict[str, Any]:
        """What the page shows beside the difference."""
        groups = []
        for heading, fates in HEADINGS:
            notes = self.converted.with_fate(*fates)
            if notes:
                lines = [{"line": note.line, "text": note.sentence()} for note in notes]
                groups.append({"title": heading, "notes": lines})
        off = [note.key for note in self.converted.with_fate("off")]
        wants = not self.with_dataset and any(
            note.key.removeprefix("--") in NAMES_OF_DATA_SETS for note in self.converted.with_fate("not offered")
        )
        rest = "All other settings stay as they are." if self.of_data else "What it does not name gets its default."
        kind = self.converted.title
        return {"kind": kind, "rest": rest, "groups": groups, "off": off, "wantsDataset": wants}


def is_foreign(content: bytes) -> bool:
    """Whether a file is another program's. One of ours with mistakes is not, so that its own lines are told."""
    document = decode(content)
    return document.form != "toml" or is_of_another(document)


def bring(name: str, content: bytes, dataset: bytes | None = None, family: str = "") -> Brought:
    """Both files, as sent by the page. family: the one that is chosen there, for a data set that tells none."""
    source = read_raw(content)
    of_data = source.kind in DATA_SETS
    converted = convert(source, None if dataset is None else read_raw(dataset), family if of_data else "")
    return Brought(name, converted, dataset is not None, of_data)
