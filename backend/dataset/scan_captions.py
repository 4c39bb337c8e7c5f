"""Finds the captions of scanned images: in files next to them, in a list or table, or given by their folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from backend.dataset import captions
from backend.dataset.caption_sources import READ, CaptionTable, read_captions, read_table
from backend.dataset.caption_tables import is_table
from backend.dataset.caption_variants import CaptionRule
from backend.dataset.items import CaptionRow
from backend.dataset.scan_state import FolderSpec, ScannedPicture, ScanState
from backend.dataset.walk import named_words


def by_lower_ending(texts: set[str]) -> dict[str, str]:
    """Files by their path with the last ending in lower case: `a.TXT` is the caption of `a.png` too."""
    lowered = {}
    for text in sorted(texts, reverse=True):
        stem, ending = os.path.splitext(text)
        lowered[stem + ending.lower()] = text
    return lowered


def caption_files(picture: Path, texts: dict[str, str], endings: Sequence[str]) -> tuple[Path, ...]:
    """The caption files of `picture` among `texts` (see `by_lower_ending`), in the order of `endings`."""
    stem = os.path.splitext(picture)[0]
    files = (texts.get(stem + ending.lower()) for ending in dict.fromkeys(endings))
    return tuple(Path(file) for file in files if file is not None)


def read_all(gathered: ScanState) -> None:
    """Give each scanned picture its captions; a fault where its file can't be read."""
    tables = {index: _tables(gathered, index) for index in range(len(gathered.folders))}
    for picture in gathered.found:
        spec = gathered.folders[picture.folder]
        if picture.caption_path is None:
            if picture.listed is None:
                picture.listed = _tabled(picture, tables[picture.folder], spec, gathered)
            texts = tuple(text for text in picture.listed or () if text.strip())
            picture.captions = texts or (class_caption(spec, picture.path),)
        else:
            _read_files(gathered, picture)
        picture.caption = picture.captions[0]


def finished(
    texts: Sequence[str], spec: FolderSpec, rule: CaptionRule, trigger: str | None
) -> tuple[str, tuple[str, ...], str | None]:
    """Of an image's captions: the plain one, the texts that versions are made of, and the trigger word of these.

    trigger: of all folders. Without versions the texts are empty.
    """
    trigger = None if spec.is_reg else spec.trigger_word or trigger
    whole = [" ".join(part for part in (spec.prefix, text, spec.suffix) if part) for text in dict.fromkeys(texts)]
    plain = captions.with_trigger(rule.plain(whole[0]), trigger)
    if len(whole) == 1 and not rule.changes(whole[0]):
        return plain, (), None
    return plain, tuple(whole), trigger


def bare(caption: str, spec: FolderSpec, trigger: str | None) -> str:
    """A plain caption as `finished` made it, without the trigger word, prefix and suffix that it got."""
    trigger = (None if spec.is_reg else spec.trigger_word or trigger) or ""
    text = "" if caption == trigger.strip() else caption.removeprefix(f"{trigger.strip()}, ")
    if text == " ".join(part for part in (spec.prefix, spec.suffix) if part):
        return ""
    return text.removeprefix(f"{spec.prefix or ''} ").removesuffix(f" {spec.suffix or ''}").strip()


def _read_files(gathered: ScanState, picture: ScannedPicture) -> None:
    texts: list[str] = []
    for path in picture.caption_files:
        gathered.used_captions.add(str(path))
        try:
            own, encoding = read_captions(path, gathered.caption_lines)
        except (OSError, captions.BadCaption) as error:
            unread = f"it can't be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)
            # the file that findings name
            picture.caption_path, picture.caption_fault = path, unread
            return
        picture.encoding = picture.encoding or encoding
        texts += own
    # an empty file beside one with a text says nothing
    picture.captions = tuple(text for text in texts if text) or ("",)


def _tables(gathered: ScanState, index: int) -> list[CaptionTable]:
    """The tables of a chosen folder: the one that is named, then those that lie in it."""
    spec, files = gathered.folders[index], gathered.walks.get(index)
    paths = [] if spec.metadata is None else [spec.metadata]
    if files is not None:
        own = {os.path.splitext(path)[0] for each in files.pictures.values() for path in each}
        parts = (os.path.splitext(text) for text in sorted(files.texts))
        inside = [stem + ending for stem, ending in parts if ending.lower() in READ and stem not in own]
        paths += [Path(text) for text in inside if Path(text) not in paths and is_table(text)]
    tables = []
    for path in paths:
        try:
            tables.append(read_table(path))
        except (OSError, ValueError) as error:
            gathered.broken_tables[str(path)] = str(error.strerror if isinstance(error, OSError) else error)
    return tables


def _tabled(
    picture: ScannedPicture, tables: Sequence[CaptionTable], spec: FolderSpec, gathered: ScanState
) -> tuple[str, ...] | None:
    for table in tables:
        name = table.row_of(picture.path, spec.path)
        if name is not None:
            gathered.used_tables[str(table.path)] = gathered.used_tables.get(str(table.path), 0) + 1
            picture.row = CaptionRow(table.path, name)
            return table.by_name[name]
    return None


def class_caption(spec: FolderSpec, picture: Path) -> str:
    """The caption of a picture that has no file and no line in a list: "" where the folder gives none."""
    if spec.class_tokens is not None or not spec.is_reg:
        return spec.class_tokens or ""
    inside = picture.parent.relative_to(spec.path).parts if picture.is_relative_to(spec.path) else ()
    return named_words(spec.path / inside[0] if inside else spec.path) or ""
