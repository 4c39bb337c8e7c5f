"""Checks one value where type and bounds are not enough; each check names the fix in the error's ``remedy``."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection
from typing import Any

from pydantic_core import PydanticCustomError

from backend.config.endings import PICTURES, UNREAD_PICTURES, WEIGHTS

CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_BLOCKS = re.compile(r"[a-z_]+(:\d+(-\d+)?(,\d+(-\d+)?)*)?")
LONGEST_ENDING = "-step00000000-last-good-99.safetensors"
"""The longest that a run adds to its name for the name of a file."""
_NAME_BYTES = 255
_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f]')


def refuse(text: str, remedy: str) -> PydanticCustomError:
    """The error to raise for one value: what is wrong, and the fix."""
    # Doubled braces: pydantic formats the message, and a person's own braces must come through.
    return PydanticCustomError("refused", "{text}", {"text": text, "remedy": remedy})


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Accept these names only; for choices that a table elsewhere makes, as it is when they are asked for."""

    def check(value: str) -> str:
        if value not in names:
            raise PydanticCustomError("literal_error", "{expected}", {"expected": ", ".join(names)})
        return value

    return check


def multiple_of(step: int) -> Callable[[int], int]:
    """Accept multiples of `step` only."""

    def check(value: int) -> int:
        if value % step:
            raise refuse(f"{value} is not a multiple of {step}", f"Write {step} or a multiple of it")
        return value

    return check


def name_or_class_path(names: tuple[str, ...], what: str) -> Callable[[str], str]:
    """Accept these names, however they are cased and joined (``PagedAdamW8bit``), or a path ``package.Class``."""
    by_letters = {_letters(name): name for name in names}

    def check(value: str) -> str:
        if CLASS_PATH.fullmatch(value):
            return value
        if _letters(value) in by_letters:
            return by_letters[_letters(value)]
        raise refuse(
            f'"{value}" is not a known {what}',
            f"Use one of {', '.join(names)}, or a class path such as package.Class",
        )

    return check


def _letters(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return re.sub(r"[\s_-]", "", name).lower()


def block_range(value: str) -> str:
    """``double``, ``double:3``, ``double:0-3`` or ``double:0,2,5-8``: a block class and which of its blocks."""
    if not _BLOCKS.fullmatch(value):
        raise refuse(
            f'"{value}" is not a choice of blocks',
            "Write a block class and numbers, such as double:0-3 or single:0,2,5-8",
        )
    for low, high in re.findall(r"(\d+)-(\d+)", value):
        if int(low) > int(high):
            raise refuse(f'"{value}" counts backwards from {low} to {high}', f"Write {high}-{low}")
    return value


def file_name(value: str) -> str:
    """A name that every file system takes, as it becomes part of file names."""
    bad = _NOT_IN_NAMES.search(value)
    if bad:
        raise refuse(
            f'"{value}" becomes part of a file name and can\'t contain {bad.group()!r}', "Use letters, digits, - and _"
        )
    if value != value.strip() or value.endswith(".") or value.startswith("."):
        raise refuse(f'"{value}" becomes part of a file name', "Remove the spaces and dots at its start and end")
    size, most = len(writable(value).encode("utf-8")), _NAME_BYTES - len(LONGEST_ENDING)
    if size > most:
        raise refuse(
            f"the name takes {size} bytes, and the names of the run's files have room for {most} of it",
            f"Choose a shorter one: {most} plain letters, or {most // 3} Chinese, Japanese or Korean ones",
        )
    return value


def clean_path(value: str) -> str:
    """A path without control characters (those come from \\t or \\n in "double quotes": ``C:\\temp``) or wrapping."""
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise refuse(
            f"the path contains a control character: {value!r}",
            "In \"double quotes\" \\t and \\n are a tab and a new line; write the path in 'single quotes' or with /",
        )
    if value != value.strip() or (len(value) > 2 and value[0] == value[-1] and value[0] in "\"'"):
        raise refuse(f"the path has spaces or quotes around it: {value!r}", "Remove them")
    return writable(value)


def writable(value: str) -> str:
    """A text that UTF-8 can hold: a file name in another encoding reaches Python as lone surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise refuse(f"{value!r} can't be written as UTF-8", "Rename the file or folder with plain letters") from None
    return value


def not_blank(value: str) -> str:
    """A text with something to read in it; an empty one would mean unset."""
    if not value.strip():
        raise refuse("contains only spaces", "Write a text, or leave it empty")
    return writable(value)


def known_or_other(names: tuple[str, ...]) -> Callable[[str], str]:
    """A known name in any letter case, or any other name without outer spaces."""

    def check(value: str) -> str:
        if not value or value != value.strip():
            raise refuse(
                f"{value!r} is not a name", f"Use one of {', '.join(names)}, or another that is installed here"
            )
        return next((name for name in names if name == value.lower()), writable(value))

    return check


def extension(value: str) -> str:
    """A file extension with its dot."""
    if not re.fullmatch(r"\.[^\s./\\]+(\.[^\s./\\]+)*", value):
        raise refuse(f'"{value}" is not a file extension', "Write it with its dot, such as .txt")
    return value


def caption_ending(value: str) -> str:
    """The ending of text files: none of pictures or weights, which a caption must never be taken for or replace."""
    ending = os.path.splitext("name" + extension(value))[1].lower()
    if ending in PICTURES | UNREAD_PICTURES | WEIGHTS:
        text = f'"{value}" is the ending of pictures, not of captions'
        if ending in WEIGHTS:
            text = f'"{value}" is the ending of weights, not of captions'
        raise refuse(text, "Write the ending of text files: .txt")
    return value


def pattern(value: str) -> str:
    """The end of a module's name, or a regular expression over the whole of it."""
    not_blank(value)
    try:
        re.compile(value)
    except re.error as error:
        raise refuse(
            f'"{value}" is not a regular expression: {error}', "Correct it, or write the end of a layer's name"
        ) from None
    return value


def rising(value: list[int]) -> list[int]:
    """Numbers that rise, none twice."""
    if sorted(set(value)) != value:
        raise refuse(f"{value} is not in rising order", f"Write {sorted(set(value))}")
    return value


def keyword_table(value: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments: names that Python takes, with plain values or flat lists of them, as TOML holds both."""
    for key, item in value.items():
        if not key.isidentifier() or not key.isascii():
            raise refuse(f'"{key}" can\'t be the name of an argument', "Use letters, digits and _")
        for single in item if isinstance(item, list) else [item]:
            if not isinstance(single, bool | int | float | str):
                raise refuse(
                    f"{key} is neither a number, a text, true or false, nor a list of these", "Simplify its value"
                )
            if isinstance(single, float) and not math.isfinite(single):
                raise refuse(f"{key} is not a finite number", "Write a finite number")
            if isinstance(single, str):
                writable(single)
    return value
