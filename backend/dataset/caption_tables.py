"""Recognises caption tables of other tools in an image folder: one file that holds the captions of many pictures."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Literal

from backend.dataset.caption_sources import CAPTION, COLUMNS, LINES, PICTURE, TAGS
from backend.dataset.file_lists import ENDINGS
from backend.dataset.items import Finding, count_of, name_files
from backend.dataset.scan_state import ScanState

# As much of a table as is read to know it.
_HEAD_BYTES = 65_536
_PICTURE, _CAPTION = frozenset(PICTURE), frozenset((*CAPTION, *TAGS))
# Binary tables are known by their usual names.
_PARQUET_STEMS = ("metadata", "train", "captions")


def findings(gathered: ScanState) -> list[Finding]:
    """What came of the caption tables in the chosen folders: those that are used, those that are not."""
    result = []
    severity: Literal["note", "warning", "error"]
    for table, count in sorted(gathered.used_tables.items()):
        text = f"{Path(table).name}: {count_of(count, 'image')} with a caption from this table"
        result.append(Finding("caption_table", "note", text, "", (table,), "dataset.caption_extension"))
    asked = {str(spec.metadata) for spec in gathered.folders if spec.metadata is not None}
    for table, why in sorted(gathered.broken_tables.items()):
        text, remedy = f"The caption table {Path(table).name} can't be read: {why}", "Correct it, or remove it."
        # one that lies in the folder may be another program's
        severity = "error" if table in asked else "warning"
        result.append(Finding("broken_table", severity, text, remedy, (table,), "dataset.folders"))
    # A .json of a picture's own name is that picture's metadata, one of thousands perhaps.
    own = {os.path.splitext(picture.path)[0] for picture in gathered.found}
    known = {*gathered.used_tables, *gathered.broken_tables}
    texts = {text for files in gathered.walks.values() for text in files.texts}
    inside = {text for text in texts - known if os.path.splitext(text)[0] not in own and is_table(text)}
    unused = sorted(inside | (asked - known))
    if unused:
        missing = any(picture.is_alone for picture in gathered.found if picture.measured.fault is None)
        names = name_files([Path(table).name for table in unused])
        kind = "a caption table" if len(unused) == 1 else "caption tables"
        remedy = f"Write each caption into a {gathered.caption_extension} file with the name of its image next to it."
        if any(Path(table).suffix.lower() in ENDINGS for table in unused):
            remedy += " A .jsonl file that names images elsewhere is read where it is chosen in place of its folder."
        text = f"{names}: {kind} that names no image without a caption here, or is of a kind that is not read"
        remedy = remedy if missing else ""
        severity = "warning" if missing else "note"
        result.append(Finding("unused_table", severity, text, remedy, tuple(unused), "dataset.caption_extension"))
    return result


def is_table(path: str) -> bool:
    """Whether a file is such a table, by its ending and its first row."""
    stem, ending = os.path.splitext(os.path.basename(path).lower())
    if ending == ".parquet":
        return stem.startswith(_PARQUET_STEMS)
    if ending not in (".json", *LINES, *COLUMNS):
        return False
    try:
        with open(path, "rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return False
    text = head.decode("utf-8-sig", "replace")
    if ending in COLUMNS:
        rows = csv.reader(io.StringIO(text.partition("\n")[0]), delimiter=COLUMNS[ending])
        columns = {column.strip().lower() for row in rows for column in row}
        return bool(columns & _PICTURE and columns & _CAPTION)
    if ending == ".json":
        return _is_json_table(text)
    return _has_columns(_first_json(text.lstrip().partition("\n")[0]))


def _is_json_table(text: str) -> bool:
    """A list of rows, or sd-scripts' object from picture to row; known by its first row, since only a head is read."""
    decoder = json.JSONDecoder()
    text = text.lstrip()
    try:
        if text.startswith("["):
            return _has_columns(decoder.raw_decode(text[1:].lstrip())[0])
        if text.startswith("{"):
            _, end = decoder.raw_decode(text[1:].lstrip())
            row = decoder.raw_decode(text[1:].lstrip()[end:].lstrip().removeprefix(":").lstrip())[0]
            return isinstance(row, dict) and bool({str(key).lower() for key in row} & _CAPTION)
    except (ValueError, RecursionError):
        return False
    return False


def _first_json(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _has_columns(row: object) -> bool:
    if not isinstance(row, dict):
        return False
    columns = {str(key).lower() for key in row}
    return bool(columns & _PICTURE and columns & _CAPTION)
