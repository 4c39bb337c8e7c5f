"""Reads captions from files: text, JSON beside an image, and tables with the captions of many images.

Tables are those of sd-scripts (JSON: image -> caption and tags), Hugging Face data sets (JSON lines or CSV with
file_name), and lists of rows in JSON. Their columns are those of the field's other tools too.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.dataset.captions import BadCaption, decode, decode_lines, read_bytes

PICTURE = ("file_name", "filename", "image_path", "image", "path", "file", "image_file", "img_path", "video_path")
"""Columns that name an image."""
CAPTION = ("caption", "captions", "text", "prompt", "description", "additional_feature")
"""Columns with a caption."""
TAGS = ("tags", "caption_or_tags")
"""Columns with tags, which follow a caption."""
LINES = frozenset({".jsonl", ".ndjson"})
COLUMNS = {".csv": ",", ".tsv": "\t"}
READ = frozenset({".json", *LINES, *COLUMNS})
"""Endings of tables that are read."""
# Larger ones are no tables of a person's images.
_LARGEST_BYTES = 1_000_000_000


@dataclass
class CaptionTable:
    """The captions of a table. by_name: the name of an image as `row_name` has it.

    folded: the same name by the one without letter case, which counts where no name is written in the same way.
    leads_out: some name is a whole path, or leads out of the table's folder.
    """

    path: Path
    by_name: dict[str, tuple[str, ...]] = field(default_factory=dict)
    folded: dict[str, str] = field(default_factory=dict)
    leads_out: bool = False
    _own: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self._own = os.path.join(self.path.parent, "")

    def add(self, name: str, captions: tuple[str, ...]) -> None:
        """Take over the captions of the image that is written as `name`; the first of several rows counts."""
        name = row_name(name)
        self.by_name.setdefault(name, captions)
        self.folded.setdefault(name.casefold(), name)
        self.leads_out = self.leads_out or name.startswith("../") or name[:1] == "/" or name[1:2] == ":"

    def row_of(self, picture: Path, folder: Path) -> str | None:
        """The name in `by_name` of the row of `picture`, found below `folder`; None where the table has none.

        Names are whole paths, or start at the table's folder or at `folder`; with or without the ending of the file. A
        table further below says nothing of what lies beside its own folder.
        """
        whole = str(picture)
        beside = self._own.startswith(os.path.join(folder, "")) and not whole.startswith(self._own)
        # thousands of images may be asked of hundreds of tables
        if beside and not self.leads_out:
            return None
        names: list[str] = []
        for root in (None, self.path.parent) if beside else (None, self.path.parent, folder):
            if root is not None and root.anchor != picture.anchor:
                continue
            name = whole if root is None else os.path.relpath(whole, root)
            name = name.replace("\\", "/")
            names += [name, os.path.splitext(name)[0]]
        exact = next((name for name in names if name in self.by_name), None)
        return exact or next((self.folded[name] for name in map(str.casefold, names) if name in self.folded), None)


def row_name(name: str) -> str:
    """A picture's name in a table in the one form by which rows are known: / between folders, no detours."""
    return os.path.normpath(name.replace("\\", "/")).replace("\\", "/")


def read_captions(path: Path, lines: bool = False) -> tuple[tuple[str, ...], str]:
    """Captions and encoding of the caption file at `path`, at least one caption, which may be empty.

    lines: each line is a caption. Of a .json file the captions and tags in it. OSError when it can't be read,
    BadCaption when it is no text or JSON without a caption.
    """
    data = read_bytes(path)
    if path.suffix.lower() == ".json":
        return captions_of_json(data), "utf-8"
    if not lines:
        text, encoding = decode(data)
        return (text,), encoding
    each, encoding = decode_lines(data)
    return tuple(each) or ("",), encoding


def read_table(path: Path) -> CaptionTable:
    """The table at `path`. OSError when it can't be read; ValueError, in words, when it is no such table."""
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError("it is larger than 1 GB")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    table = CaptionTable(path)
    try:
        for name, row in _rows(path.suffix.lower(), text):
            captions = captions_of(row)
            if captions:
                table.add(name, captions)
    except (ValueError, RecursionError, csv.Error) as error:
        raise ValueError(f"it is not valid {path.suffix[1:].upper()} ({error})") from None
    if not table.by_name:
        raise ValueError("no line of it names an image and its caption")
    return table


def captions_of(row: Any) -> tuple[str, ...]:
    """The captions in the columns of a row; tags, which a list may hold, follow each with a comma between."""
    if isinstance(row, str):
        return (row.strip(),) if row.strip() else ()
    if not isinstance(row, Mapping):
        return ()
    columns = {str(name).lower(): value for name, value in row.items()}
    texts, words = (next(filter(None, (_texts(columns.get(name)) for name in names)), []) for names in (CAPTION, TAGS))
    tags = ", ".join(words)
    return tuple(f"{text}, {tags}" if tags else text for text in texts) or ((tags,) if tags else ())


def captions_of_json(data: bytes) -> tuple[str, ...]:
    """The captions in a picture's own JSON file, "" where its column is empty. BadCaption without such a column."""
    try:
        row = json.loads(decode(data)[0] or "null")
    except (ValueError, RecursionError) as error:
        raise BadCaption(f"it is not valid JSON ({error})") from None
    captions = captions_of(row)
    if not captions and isinstance(row, Mapping) and any(_is_empty(row, name) for name in (*CAPTION, *TAGS)):
        return ("",)
    if not captions:
        raise BadCaption(f"none of its names is one of a caption ({', '.join((*CAPTION[:4], TAGS[0]))})")
    return captions


def _is_empty(row: Mapping[Any, Any], column: str) -> bool:
    return any(str(name).lower() == column and value in ("", []) for name, value in row.items())


def _rows(ending: str, text: str) -> Iterator[tuple[str, Any]]:
    """Name of the image and row, of those that have a name."""
    if ending in COLUMNS:
        return _named(csv.DictReader(io.StringIO(text), delimiter=COLUMNS[ending]))
    if ending in LINES:
        # JSON may have separators such as U+2028 as they are, at which splitlines() would cut
        return _named(_line(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    whole = json.loads(text)
    if isinstance(whole, Mapping):
        return iter([(str(name), row) for name, row in whole.items()])
    return _named(whole if isinstance(whole, list) else [])


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number}: {error.msg}") from None


def _named(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for row in rows:
        if isinstance(row, Mapping):
            columns = {str(name).strip().lower(): value for name, value in row.items() if name is not None}
            name = next((columns[key] for key in PICTURE if isinstance(columns.get(key), str) and columns[key]), None)
            if name is not None:
                yield name, columns


def _texts(value: Any) -> list[str]:
    """The texts of a column: one, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [" ".join(text.split()) for text in values if isinstance(text, str) and text.strip()]
