"""Changes the captions of many images on the page: first shown as a difference, then written in the background."""

from __future__ import annotations

import difflib
import itertools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.base.errors import Refused
from backend.dataset.caption_changes import CaptionChange, apply, texts_of
from backend.dataset.caption_edits import Edit
from backend.dataset.captions import BadCaption
from gui import messages
from gui.caption_refresh import files_of, refresh
from gui.caption_writing import CaptionWriter, Work, ending

ROWS = 20
"""Differences that are shown at a time."""
_PREVIEWS = 4
_MOST_SKIPPED = 20
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_Place = tuple[Path, str | None]


@dataclass(frozen=True, slots=True)
class Preview:
    """Changes that are shown and not made yet. rows: the number of an image, and which of the changes it shows."""

    id: int
    scan: int
    words: str
    changes: list[CaptionChange]
    rows: list[tuple[int, int]]
    skipped: list[tuple[str, str]]


class BulkCaptions:
    """Previews, and their writing."""

    def __init__(self, writer: CaptionWriter) -> None:
        self.scan, self.writer = writer.scan, writer
        self._numbers = itertools.count(1)
        self._previews: dict[int, Preview] = {}
        self._lock = threading.Lock()

    def preview(self, edit: Edit, numbers: Sequence[int]) -> Preview:
        """What `edit` changes in the captions of these images. Refused, in words, for what can't be done."""
        edit = replace(edit, separator=self.scan.separator)
        if fault := edit.fault():
            raise Refused(fault, "")
        places, skipped = self._places(numbers), []
        known = texts_of(place for _, place in places)
        wanted: list[tuple[int, _Place, str | None, str]] = []
        seen: set[_Place] = set()
        for number, place in places:
            before = known[place]
            item = self.scan.items[number]
            if isinstance(before, BadCaption):
                skipped.append((item.path.name, messages.sentence(f"{place[0].name}: {before}")))
            elif place not in seen:
                seen.add(place)
                # what its folder gives it is written down with the change
                text = before if before is not None else self.scan.bare(item) if item.caption_path is None else ""
                wanted.append((number, place, before, text))
        preview = self._changed(edit, wanted, skipped)
        with self._lock:
            self._previews[preview.id] = preview
            for old in list(self._previews)[:-_PREVIEWS]:
                del self._previews[old]
        return preview

    def _changed(
        self, edit: Edit, wanted: list[tuple[int, _Place, str | None, str]], skipped: list[tuple[str, str]]
    ) -> Preview:
        after: dict[int, str] = {}
        for lines in (False, True):
            # in JSON and in tables each line is a caption
            own = [at for at, (_, place, *_) in enumerate(wanted) if self._is_lines(place) is lines]
            try:
                texts = replace(edit, lines=lines).of_all([wanted[at][3] for at in own]) if own else []
            except ValueError as error:
                raise Refused(str(error), "") from None
            after |= dict(zip(own, texts, strict=True))
        changes, rows = [], []
        for at, (number, (path, entry), before, text) in enumerate(wanted):
            if after[at] != text:
                rows.append((number, len(changes)))
                changes.append(CaptionChange(path, before, after[at], entry))
        return Preview(next(self._numbers), self.scan.number, edit.words(), changes, rows, skipped)

    def facts(self, number: int, page: int) -> dict[str, Any]:
        """A preview with one page of its differences. Refused when it is not kept any more."""
        preview = self._kept(number)
        shown = preview.rows[page * ROWS : (page + 1) * ROWS]
        return {
            "preview": preview.id,
            "what": preview.words,
            "changes": len(preview.changes),
            "files": len({change.path for change in preview.changes}),
            "pages": max(1, -(-len(preview.rows) // ROWS)),
            "rows": [self._row(number, preview.changes[at]) for number, at in shown],
            "skipped": [{"name": name, "note": why} for name, why in preview.skipped[:_MOST_SKIPPED]],
            "skipped_count": len(preview.skipped),
        }

    def _row(self, number: int, change: CaptionChange) -> dict[str, Any]:
        return {
            "index": number,
            "name": self.scan.items[number].path.name,
            "file": change.path.name,
            "is_new": change.before is None,
            "parts": difference(change.before or "", change.after or ""),
        }

    def start(self, number: int) -> None:
        """Write a preview's changes in the background. Refused when it is out of date, or other work runs."""
        preview = self._kept(number)
        if not preview.changes:
            raise Refused("Nothing changes", "")

        def write(work: Work) -> str:
            applied = apply(preview.changes, preview.words, folder=self.writer.folder, progress=work.progress)
            work.made = applied.id
            refresh(self.scan, {change.path for change in preview.changes})
            count = f"Files changed: {applied.files:,}.{ending(applied)}"
            return f"{preview.words}. {count}"

        self.writer.run(write)
        with self._lock:
            self._previews.pop(number, None)

    def _kept(self, number: int) -> Preview:
        preview = self._previews.get(number)
        if preview is None or preview.scan != self.scan.number:
            raise Refused("These changes are out of date", "Look at the changes again")
        return preview

    def _places(self, numbers: Sequence[int]) -> list[tuple[int, _Place]]:
        """Where the captions of images lie: in files, in the row of a table, or in a file that is not there yet."""
        places: list[tuple[int, _Place]] = []
        for number in numbers:
            item = self.scan.items[number]
            files = files_of(self.scan, item)
            existing = [path for path in files if path == item.caption_path or path.is_file()]
            if existing or item.row is None:
                places += [(number, (path, None)) for path in existing or files[:1]]
            else:
                places.append((number, (item.row.path, item.row.name)))
        return places

    def _is_lines(self, place: _Place) -> bool:
        path, entry = place
        return entry is not None or path.suffix.lower() == ".json" or self.scan.caption_lines


def difference(before: str, after: str) -> list[list[str]]:
    """`after` compared with `before`, word by word: parts that are "same", "old" or "new", each with its text."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    parts: list[list[str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(["same", "".join(old[a:b])])
            continue
        parts += [["old", "".join(old[a:b])]] if b > a else []
        parts += [["new", "".join(new[c:d])]] if d > c else []
    return parts
