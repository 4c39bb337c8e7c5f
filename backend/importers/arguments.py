"""Splits arguments that are written as ``name=value`` into a table, in all the ways that people write them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from backend.importers.values import Left

_NAME = re.compile(r"[A-Za-z_][\w.]*\s*=(?!=)")
_OPEN, _CLOSE = "([{", ")]}"
_ENDS = " \t\r\n,\"'"
_WORDS = {"true": True, "false": False, "none": None}


def arguments(value: Any) -> dict[str, Any]:
    """``["weight_decay=0.1", "betas=0.9,0.99"]``, or the same in one line, as a table. Left for what is neither."""
    if isinstance(value, Mapping):
        return {str(key): _value(str(item)) if isinstance(item, str) else item for key, item in value.items()}
    if isinstance(value, str):
        words = list(_split(value))
        if value.strip(" \t\r\n,\"'") and not words:
            raise Left("arguments are written as name=value")
    elif isinstance(value, list | tuple | None):
        words = [word for each in value or [] for word in _one(each)]
    else:
        raise Left("arguments are written as name=value")
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise Left(f"{word!r} is not an argument; arguments are written as name=value")
        values[name.strip(" \"'")] = _value(text)
    return values


def _one(each: Any) -> list[str]:
    """The arguments in one item of a list, which may hold several by mistake."""
    text = str(each).strip()
    words = list(_split(text))
    return words if len(words) > 1 else [text]


def _split(text: str) -> Iterator[str]:
    """The arguments of one line: each begins with its name, outside of brackets and quotes."""
    depth, quote, begin = 0, "", -1
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth = max(0, depth - 1)
        elif sign in "\"'" and place and text[place - 1] == "=":
            quote = sign
        elif depth == 0 and (place == 0 or text[place - 1] in " \t\r\n,\"'") and _NAME.match(text, place):
            if begin >= 0:
                yield text[begin:place].strip(" \t\r\n,")
            begin = place
    if begin >= 0:
        yield text[begin:].strip(" \t\r\n,")


def _value(text: str) -> Any:
    bare = text.strip(" \t\r\n,")
    while len(bare) > 1 and bare[0] in "\"'" and bare[-1] == bare[0]:
        bare = bare[1:-1].strip(" ,")
    if bare and bare[0] not in "\"'":
        # the end of a quote that the whole argument is in, and the beginning of the next one's
        bare = bare.rstrip(_ENDS)
    if bare.lower() in _WORDS:
        return _WORDS[bare.lower()]
    try:
        item = ast.literal_eval(bare)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return bare
    return list(item) if isinstance(item, tuple | set) else item
