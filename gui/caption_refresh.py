"""Reads captions again after their files were written, so that the page's scan shows what they hold now."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from backend.base.errors import WriteFailed
from backend.dataset.caption_changes import Progress, Undone, undo
from backend.dataset.caption_journal import Journal
from backend.dataset.caption_sources import CaptionTable, read_captions, read_table
from backend.dataset.captions import BadCaption
from backend.dataset.items import Item
from gui.dataset_scan import PageScan


def files_of(scan: PageScan, item: Item) -> list[Path]:
    """The caption files that an image has or may have: the first one, and further endings that the settings name."""
    first = item.caption_path or item.path.with_suffix(scan.caption_extension)
    return list(dict.fromkeys([first, *(item.path.with_suffix(ending) for ending in scan.more_extensions)]))


def refresh(scan: PageScan, changed: Collection[Path]) -> None:
    """Update the images of `scan` whose captions are in files of `changed`."""
    tables: dict[Path, CaptionTable | None] = {}
    wanted = {str(path) for path in changed}
    items = scan.items
    for index, item in enumerate(items):
        if scan.items is not items:
            # another scan, or another plan of this one, came in between
            return refresh(scan, changed)
        places: Iterable[Path] = files_of(scan, item)
        places = [*places, item.row.path] if item.row is not None else places
        if any(str(place) in wanted or os.path.realpath(place) in wanted for place in places):
            reread(scan, index, tables)


def undo_on_page(scan: PageScan, name: str, folder: Path | None, progress: Progress | None = None) -> Undone:
    """`caption_changes.undo`, and what `scan` shows of the files that it restored, also where it could not do all."""
    try:
        undone = undo(name, folder=folder, progress=progress)
    except WriteFailed:
        refresh(scan, {kept.path for kept in Journal.at(folder).read(name)})
        raise
    refresh(scan, undone.files)
    return undone


def reread(scan: PageScan, index: int, tables: dict[Path, CaptionTable | None]) -> None:
    """Update one image to what its caption files, or the row of its table, hold now. tables: read so far."""
    item = scan.items[index]
    texts: list[str] = []
    first: Path | None = None
    for path in files_of(scan, item):
        with suppress(OSError, BadCaption):
            texts += read_captions(path, scan.caption_lines)[0]
            first = first or path
    listed: tuple[str, ...] | None = None
    if first is None and item.row is not None:
        listed = _row(item, tables)
    current = [text for text in (texts if first is not None else listed or ()) if text]
    if first is None and listed is None:
        current = list(scan.without_file(item))
    scan.edited(index, replace(scan.finished(item, current or [""]), caption_path=first))


def _row(item: Item, tables: dict[Path, CaptionTable | None]) -> tuple[str, ...]:
    assert item.row is not None
    if item.row.path not in tables:
        try:
            tables[item.row.path] = read_table(item.row.path)
        except (OSError, ValueError):
            tables[item.row.path] = None
    table = tables[item.row.path]
    return () if table is None else table.by_name.get(item.row.name, ())
