"""Converts the few accepted spellings of a value to its type, and nothing beyond them.

Each is unambiguous; whatever none of them knows is left as it is, and the type check refuses it by name. ``NAMED`` is
what the docs show.
"""

from __future__ import annotations

import re
from typing import Any

from backend.config.schema import Setting

NAMED: tuple[tuple[str, str], ...] = (
    ('"10", "1e-4"', "a number in quotes is the number"),
    ("10.0", "a number without a fraction is a whole number where one is needed"),
    ('"true", "False"', "true and false in upper or lower case, where they are needed"),
    ('true for "true"', "true and false for a choice that has true and false, or on and off"),
    ('"BF16", " adamw "', "upper and lower case and outer spaces of a choice or a known name"),
    ('"", "none"', "an empty text makes a setting empty that may be empty; none does so for a number"),
    ('"0.1, 0.2" or 0.1', "numbers with commas between them, or a single one, for a list of numbers"),
    ('"attn.to_q"', "a single text without a comma, for a list of texts"),
    ('"pictures/cats"', "a text, or a list of texts, for rows that need only one text"),
    ('"\\"C:\\\\my pictures\\""', "quotes and spaces around a path are removed"),
)

_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_UNSET_WORDS = ("none", "null")
_TEXT_KINDS = ("str", "text", "path")


def coerce(setting: Setting, value: Any) -> Any:
    """The value as the setting's type wants it, where one of the named coercions fits; else the value unchanged."""
    if setting.nullable and isinstance(value, str):
        word = value.strip().lower()
        if not word or (word in _UNSET_WORDS and setting.kind not in _TEXT_KINDS):
            return None
    convert = _BY_KIND.get(setting.kind)
    return convert(setting, value) if convert else value


def _bool(_: Setting, value: Any) -> Any:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    return value


def _int(_: Setting, value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text):
            # Python refuses to read thousands of digits; no setting is that large.
            return int(text) if len(text) < 100 else value
        number = _float(_, value)
        return int(number) if isinstance(number, float) and number.is_integer() else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _float(_: Setting, value: Any) -> Any:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    # An int too large for a float can't be checked against bounds.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000:
        return float(value)
    return value


def _choice(setting: Setting, value: Any) -> Any:
    known = setting.choices or setting.suggestions
    word = value.strip() if isinstance(value, str) else ""
    if isinstance(value, bool) or word.lower() in ("true", "false"):
        truth = value if isinstance(value, bool) else word.lower() == "true"
        for yes, no in (("true", "false"), ("on", "off")):
            if yes in known and no in known:
                return yes if truth else no
    if isinstance(value, str):
        return next((name for name in known if name.lower() == word.lower()), word)
    return value


def _text(setting: Setting, value: Any) -> Any:
    return _choice(setting, value) if setting.suggestions else value


def _path(_: Setting, value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        quoted = len(text) > 2 and text[0] == text[-1] and text[0] in "\"'"
        return text[1:-1] if quoted else text
    return value


def _numbers(setting: Setting, value: Any) -> Any:
    one = _int if setting.kind == "int_list" else _float
    if isinstance(value, str):
        value = [part for part in value.strip().strip("[]").split(",") if part.strip()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    return [one(setting, item) for item in value] if isinstance(value, list | tuple) else value


def _texts(_: Setting, value: Any) -> Any:
    return [value] if isinstance(value, str) and value and "," not in value else value


def _rows(setting: Setting, value: Any) -> Any:
    needed = [column for column in setting.columns if column.required]
    if isinstance(value, dict | str) and value:
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    rows = [{needed[0].name: r} if isinstance(r, str) and len(needed) == 1 else r for r in value]
    columns = {column.name: column for column in setting.columns}
    return [
        {key: coerce(columns[key], item) if key in columns else item for key, item in row.items()}
        if isinstance(row, dict)
        else row
        for row in rows
    ]


_BY_KIND = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "choice": _choice,
    "str": _text,
    "path": _path,
    "int_list": _numbers,
    "float_list": _numbers,
    "str_list": _texts,
    "tables": _rows,
}
