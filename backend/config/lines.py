"""Finds the line of a TOML text that a key stands on, which tomllib does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

_HEADER = re.compile(r"\s*\[")
# What may hide a line's end or a bracket: texts in their four kinds of quotes, and comments.
_TOKEN = re.compile(
    r""""{3}(?:[^"\\]|\\.|"{1,2}(?!"))*(?:"{3,5}|\Z)|'{3}(?:[^']|'{1,2}(?!'))*(?:'{3,5}|\Z)"""
    r"""|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|\#[^\n]*|[\[\]{}]|\n""",
    re.DOTALL,
)


def key_lines(text: str) -> dict[str, int]:
    """Line (from 1) on which each key, table and row of a valid TOML text begins, by path (``compile.a[1].b``).

    The text is cut into statements, each of which is parsed once, so that the time grows with the text and no more.
    """
    lines: dict[str, int] = {}
    rows: dict[str, int] = {}
    prefix = ""
    for number, statement in _statements(text):
        header = _header_path(statement, rows) if _HEADER.match(statement) else None
        if header is not None:
            prefix = header
            lines.setdefault(re.sub(r"\[\d+\]$", "", prefix), number)
            lines.setdefault(prefix, number)
            continue
        for path in _paths(_parse(statement) or {}, prefix):
            lines.setdefault(path, number)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The line that each statement of a TOML text begins on, and its text; the last one may be left open."""
    lines = split(text)
    text = "\n".join(lines) + "\n"
    depth, begin, number, start = 0, 1, 1, 0
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in ("[", "{"):
            depth += 1
        elif word in ("]", "}"):
            depth = max(0, depth - 1)
        elif word == "\n" and depth == 0:
            yield begin, text[start : token.start()]
            begin, start = number + 1, token.end()
        number += word.count("\n")
    if start < len(text):
        yield begin, text[start:]


def line_of(lines: dict[str, int], path: str) -> int | None:
    """Line of a path, or of the nearest thing around it; None when nothing of it is in the file."""
    while path:
        if path in lines:
            return lines[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return None


def first_open_line(text: str) -> int:
    """Line (from 1) that begins the value which is still open where the text ends."""
    return list(_statements(text))[-1][0]


def split(text: str) -> list[str]:
    """The lines of a TOML text; its lines end at line feeds only, and a lone carriage return is taken for one."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _parse(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text + "\n")
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _header_path(line: str, rows: dict[str, int]) -> str | None:
    """Path of the table that a header opens, rows counted; None when the line is no header."""
    node: Any = _parse(line)
    if not isinstance(node, dict) or not node:
        return None
    path = ""
    while isinstance(node, dict) and node:
        key, node = next(iter(node.items()))
        path = f"{path}.{key}" if path else key
        if isinstance(node, list):
            rows[path] = rows.get(path, -1) + 1
            node = None
        if path in rows:
            path = f"{path}[{rows[path]}]"
    return path


def _paths(data: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in data.items():
        path = f"{prefix}.{key}" if prefix else key
        yield path
        if isinstance(value, dict):
            yield from _paths(value, path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield f"{path}[{index}]"
                if isinstance(item, dict):
                    yield from _paths(item, f"{path}[{index}]")
