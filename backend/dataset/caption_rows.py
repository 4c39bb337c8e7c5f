"""Writes captions back into JSON files and tables: into the columns that they were read from, all else kept."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.dataset.caption_sources import CAPTION, COLUMNS, LINES, PICTURE, TAGS, captions_of, row_name
from backend.dataset.captions import BadCaption


@dataclass
class RowEdits:
    """New captions of a table's rows. changes: the name of a picture as `row_name` has it -> captions before and after.

    before: what such a row holds now, filled by a look at the table; of several rows of a name the first that has the
    captions that are to be replaced.
    """

    changes: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    before: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def edited(self, name: str, row: Any) -> Any:
        """The row with its new captions; the same object where nothing changes."""
        key = row_name(name)
        change = self.changes.get(key)
        if change is None:
            return row
        now = captions_of(row)
        if now == change[0]:
            self.before[key] = now
            return with_captions(row, change[1])
        self.before.setdefault(key, now)
        return row


def edit_table(ending: str, text: str, edits: RowEdits) -> str:
    """`text` of a table with other captions. ending: of its file, in lower case. BadCaption when it is no table."""
    try:
        if ending in COLUMNS:
            return _columns(text, COLUMNS[ending], edits)
        if ending in LINES:
            return "\n".join(_line(line, edits) for line in text.split("\n"))
        return _json(text, edits)
    except (ValueError, RecursionError, csv.Error) as error:
        raise error if isinstance(error, BadCaption) else BadCaption(f"it can't be read ({error})") from None


def edit_json(text: str, captions: Sequence[str]) -> str:
    """`text` of a picture's own JSON file with other captions. BadCaption when it is no JSON, or can't hold them."""
    try:
        row = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, BadCaption) else BadCaption(f"it is not valid JSON ({error})") from None
    return _dumped(with_captions(row, captions), text)


def with_captions(row: Any, captions: Sequence[str]) -> Any:
    """`row` so that `captions_of` gives `captions` (no empty ones); tags stay in their column where they can.

    BadCaption when the row can't hold them: several in a text, say.
    """
    texts = [" ".join(text.split()) for text in captions if text.strip()]
    changed = _with_texts(row, texts)
    if captions_of(changed) != tuple(texts):
        raise BadCaption("its columns can't hold the new caption")
    return changed


def _with_texts(row: Any, texts: list[str]) -> Any:
    if not isinstance(row, Mapping):
        return texts[0] if len(texts) == 1 else ""
    caption, tags = _column(row, CAPTION), _column(row, TAGS)
    if tags is None:
        key = caption or _empty_column(row)
        words = key in row and str(key).lower() in TAGS and len(texts) < 2
        return {**row, key: _tags(row[key], "".join(texts)) if words else _alike(row.get(key), texts)}
    words = ", ".join(captions_of({TAGS[0]: row[tags]}))
    if caption is None:
        return {**row, tags: _tags(row[tags], texts[0] if texts else "")}
    if texts and all(text.endswith(f", {words}") for text in texts):
        return {**row, caption: _alike(row[caption], [text.removesuffix(f", {words}") for text in texts])}
    own = captions_of({CAPTION[0]: row[caption]})
    if len(own) == 1 == len(texts) and f"{texts[0]}, ".startswith(f"{own[0]}, "):
        return {**row, tags: _tags(row[tags], texts[0].removeprefix(own[0]).removeprefix(", "))}
    # what is no longer caption and tags is all caption
    return {**row, caption: _alike(row[caption], texts), tags: _tags(row[tags], "")}


def _column(row: Mapping[Any, Any], names: Sequence[str]) -> Any | None:
    """The key of the column that captions are read from: the first of `names` that holds a text."""
    keys = {str(key).lower(): key for key in row}
    filled = (keys[name] for name in names if name in keys and captions_of({CAPTION[0]: row[keys[name]]}))
    return next(filled, None)


def _empty_column(row: Mapping[Any, Any]) -> Any:
    """The key under which a row without a caption gets one: of a column that is there, if any is."""
    keys = {str(key).lower(): key for key in row}
    return next((keys[name] for name in (*CAPTION, *TAGS) if name in keys), CAPTION[0])


def _alike(old: Any, texts: list[str]) -> Any:
    """Texts in the form that the column had: a list, or one text."""
    return texts if isinstance(old, list) or len(texts) > 1 else "".join(texts)


def _tags(old: Any, words: str) -> Any:
    if isinstance(old, list):
        return [word.strip() for word in words.split(",") if word.strip()]
    return words


def _name_of(row: Mapping[Any, Any]) -> str | None:
    columns = {str(key).strip().lower(): value for key, value in row.items() if key is not None}
    return next((columns[key] for key in PICTURE if isinstance(columns.get(key), str) and columns[key]), None)


def _line(line: str, edits: RowEdits) -> str:
    if not line.strip():
        return line
    try:
        row = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        # a list of files passes over such lines, and so does this
        return line
    name = _name_of(row) if isinstance(row, Mapping) else None
    changed = row if name is None else edits.edited(name, row)
    return line if changed is row else _dumped(changed, line.strip()) + line[len(line.rstrip()) :]


def _json(text: str, edits: RowEdits) -> str:
    whole = json.loads(text, object_pairs_hook=_unique)
    changed: Any
    if isinstance(whole, Mapping):
        changed = {name: edits.edited(str(name), row) for name, row in whole.items()}
    else:
        named = ((row, _name_of(row) if isinstance(row, Mapping) else None) for row in whole)
        changed = [row if name is None else edits.edited(name, row) for row, name in named]
    return text if changed == whole else _dumped(changed, text)


def _columns(text: str, delimiter: str, edits: RowEdits) -> str:
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    head = [name.strip().lower() for name in rows[0]] if rows else []
    for number, row in enumerate(rows[1:], 1):
        columns = dict(zip(head, row, strict=False))
        name = _name_of(columns)
        changed = columns if name is None else edits.edited(name, columns)
        if changed is not columns:
            rows[number] = [str(changed[each]) for each in head[: len(row)]] + row[len(head) :]
            if captions_of(dict(zip(head, rows[number], strict=False))) != captions_of(changed):
                raise BadCaption("its columns can't hold the new caption")
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n" if "\r\n" in text else "\n").writerows(rows)
    return buffer.getvalue()


def _dumped(value: Any, like: str) -> str:
    """`value` as JSON, indented and with escapes as in the text `like`, and with its last line end."""
    lines = like.strip().split("\n")
    indent: int | str | None = None
    if len(lines) > 1:
        blank = lines[1][: len(lines[1]) - len(lines[1].lstrip())]
        indent = blank if "\t" in blank else len(blank)
    escaped = like.isascii() and "\\u" in like
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    # JSON has no line ends within its texts
    text = text.replace("\n", "\r\n") if "\r\n" in like.strip() else text
    return text + like[len(like.rstrip()) :]


_Pairs = list[tuple[str, Any]]


def _unique(pairs: _Pairs) -> dict[str, Any]:
    """An object whose names are all different: of equal ones all but the last would be lost."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise BadCaption("it names something twice in one object")
    return result
