"""Changes the captions of many images on the page: first shown as a difference, then written in the background."""

from __future__ import annotations

import difflib
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backend.base.errors import Refused, WriteFailed
from backend.dataset.caption_changes import CaptionChange, apply, texts_of
from backend.dataset.caption_edits import Edit
from backend.dataset.caption_journal import Journal
from backend.dataset.captions import BadCaption
from backend.dataset.items import count_of
from gui import messages
from gui.caption_refresh import files_of, refresh, undo_on_page
from gui.dataset_scan import PageScan

log = logging.getLogger(__name__)

ROWS = 20
"""Differences that are shown at a time."""
_PREVIEWS = 4
_MOST_SKIPPED = 20
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_Place = tuple[Path, str | None]


class Cancelled(Exception):
    """The person stopped the work."""


@dataclass(frozen=True, slots=True)
class Preview:
    """Changes that are shown and not made yet. rows: the number of an image, and which of the changes it shows."""

    id: int
    scan: int
    words: str
    changes: list[CaptionChange]
    rows: list[tuple[int, int]]
    skipped: list[tuple[str, str]]


@dataclass
class Work:
    """What is written in the background, and how that went."""

    state: str = "idle"  # "idle", "running", "done", "failed", "cancelled"
    number: int = 0
    done: int = 0
    total: int = 0
    text: str = ""
    began: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def progress(self, done: int, total: int) -> None:
        """Take over how far it is. Cancelled when the person stopped it."""
        self.count(done, total)
        if self.stop.is_set():
            raise Cancelled

    def count(self, done: int, total: int) -> None:
        """Take over how far it is, whatever the person wants."""
        self.done, self.total = done, total

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before it is known."""
        took = time.monotonic() - self.began
        return None if self.done < 10 or self.state != "running" else took / self.done * (self.total - self.done)


class BulkCaptions:
    """Previews, and one piece of work at a time."""

    def __init__(self, scan: PageScan) -> None:
        self.scan = scan
        self.folder = scan.folder / "caption_changes"
        self.work = Work()
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
            applied = apply(preview.changes, preview.words, folder=self.folder, progress=work.progress)
            refresh(self.scan, {change.path for change in preview.changes})
            left = f" {_left(len(applied.left))}" if applied.left else ""
            return f"{preview.words}: {count_of(applied.files, 'file')} changed.{left}"

        self._run(write)
        with self._lock:
            self._previews.pop(number, None)

    def start_undo(self, name: str) -> None:
        """Undo changes of the journal in the background. Refused when other work runs."""

        def write(work: Work) -> str:
            undone = undo_on_page(self.scan, name, self.folder, work.count)
            left = f" {_left(len(undone.left))}" if undone.left else ""
            return f"{count_of(len(undone.files), 'file')} restored.{left}"

        self._run(write)

    def facts_of_work(self) -> dict[str, Any]:
        """How far the work is, and which changes can be undone."""
        work, newest = self.work, Journal.at(self.folder).newest()
        undoable = None
        if newest is not None and work.state != "running":
            undoable = {
                "id": newest.id, "what": newest.what, "files": newest.files, "at": newest.at,
                "cut_off": newest.state == "cut off",
            }  # fmt: skip
        return {
            "state": work.state,
            "number": work.number,
            "done": work.done,
            "total": work.total,
            "text": work.text,
            "seconds_left": work.seconds_left,
            "undo": undoable,
        }

    def _run(self, write: Callable[[Work], str]) -> None:
        with self._lock:
            if self.work.state == "running":
                raise Refused("Captions are being changed", "Wait until that is done")
            work = self.work = Work("running", self.work.number + 1, began=time.monotonic())
        threading.Thread(target=self._follow, args=(work, write), name="captions", daemon=True).start()

    def _follow(self, work: Work, write: Callable[[Work], str]) -> None:
        try:
            work.text = write(work)
            work.state = "done"
        except Cancelled:
            work.text, work.state = "Cancelled. All captions are as they were before.", "cancelled"
        except (Refused, WriteFailed, OSError) as error:
            work.text, work.state = messages.words(error), "failed"
        except Exception:
            log.exception("Captions could not be changed")
            work.text, work.state = "The captions could not be changed; the log of the page says why.", "failed"

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


def _left(count: int) -> str:
    return f"{count_of(count, 'file')} changed meanwhile, and stayed as it is."
