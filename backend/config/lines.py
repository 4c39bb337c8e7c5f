"""On which line of a TOML text a key stands. tomllib does not say, so growing prefixes are parsed, on error only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

_HEADER = re.compile(r"\s*\[")


def key_lines(text: str) -> dict[str, int]:
    """Line (from 1) on which each key, table and row of a valid TOML text begins, by path (``compile.a[1].b``).

    The text is cut at its table headers, and within each piece prefixes that grow line by line are parsed: a path
    that is there for the first time began on the line after the last prefix that parsed.
    """
    found: dict[str, int] = {}
    rows: dict[str, int] = {}
    prefix, piece, begin = "", [], 1
    for number, line in enumerate(split(text), start=1):
        # A bracket at the start of a line is a header only where no value is still open.
        if _HEADER.match(line) and _parse(piece) is not None:
            header = _header_path(line, rows)
            if header is not None:
                prefix = header
                found.setdefault(re.sub(r"\[\d+\]$", "", prefix), number)
                found.setdefault(prefix, number)
                piece, begin = [], number + 1
                continue
        piece.append(line)
        parsed = _parse(piece)
        if parsed is not None:
            for path in _paths(parsed, prefix):
                found.setdefault(path, begin)
            begin = number + 1
    return found


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
    lines = split(text)
    for count in range(len(lines), 0, -1):
        if _parse(lines[:count]) is not None:
            return count + 1
    return 1


def split(text: str) -> list[str]:
    """The lines of a TOML text; its lines end at line feeds only, and a lone carriage return is taken for one."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _parse(lines: list[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads("\n".join(lines) + "\n")
    except tomllib.TOMLDecodeError:
        return None


def _header_path(line: str, rows: dict[str, int]) -> str | None:
    """Path of the table that a header opens, rows counted; None when the line is no header."""
    node: Any = _parse([line])
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
