"""Recognises caption tables of other tools in an image folder: one file that holds the captions of many pictures."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

from backend.dataset.file_lists import ENDINGS
from backend.dataset.items import Finding, name_files
from backend.dataset.scan_state import ScanState

# As much of a table as is read to know it.
_HEAD_BYTES = 65_536
# Columns that name a picture, and those that hold its caption, in the tables of sd-scripts, musubi-tuner, diffusers
# (Hugging Face datasets), SimpleTuner, ai-toolkit and img2dataset.
_PICTURE = frozenset({"file_name", "filename", "image_path", "image", "path", "file", "image_file", "img_path"})
_CAPTION = frozenset(
    {"caption", "captions", "text", "prompt", "tags", "caption_or_tags", "description", "additional_feature"}
)
_TABLES = {".jsonl": "JSON lines", ".ndjson": "JSON lines", ".json": "JSON", ".csv": "CSV", ".tsv": "TSV"}
# Binary tables are known by their usual names.
_PARQUET_STEMS = ("metadata", "train", "captions")


def findings(gathered: ScanState) -> list[Finding]:
    """A finding that names every caption table below the chosen folders; a warning where captions are missing."""
    # A .json of a picture's own name is that picture's metadata, one of thousands perhaps.
    own = {os.path.splitext(picture.path)[0] for picture in gathered.found}
    texts = (text for files in gathered.walks.values() for text in files.texts)
    tables = sorted(text for text in texts if os.path.splitext(text)[0] not in own and _is_table(text))
    if not tables:
        return []
    missing = any(picture.is_alone for picture in gathered.found if picture.measured.fault is None)
    names = name_files([Path(table).name for table in tables])
    kind = "a caption table" if len(tables) == 1 else "caption tables"
    remedy = f"Write each caption into a {gathered.caption_extension} file with the name of its image"
    remedy += " next to it; the captions of the table are not used." if missing else "; the table is not used."
    if any(Path(table).suffix.lower() in ENDINGS for table in tables):
        remedy += " A .jsonl file is read where it is chosen in place of its folder."
    return [Finding("caption_table", "warning" if missing else "note", f"{names}: {kind} of another tool, not read",
                    remedy, tuple(tables), "dataset.caption_extension")]  # fmt: skip


def _is_table(path: str) -> bool:
    stem, ending = os.path.splitext(os.path.basename(path).lower())
    if ending == ".parquet":
        return stem.startswith(_PARQUET_STEMS)
    if ending not in _TABLES:
        return False
    try:
        with open(path, "rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return False
    text = head.decode("utf-8-sig", "replace")
    if ending in (".csv", ".tsv"):
        rows = csv.reader(io.StringIO(text.partition("\n")[0]), delimiter="\t" if ending == ".tsv" else ",")
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
