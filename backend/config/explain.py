"""Explains pydantic's errors to a person: what is wrong with one value, and the fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backend.base.redact import redact
from backend.config.names import nearest_choice
from backend.config.schema import Setting

_KINDS = {
    "bool": ("true or false", "true"),
    "int": ("a whole number", "1"),
    "float": ("a number", "0.5"),
    "str": ("a text", '"text"'),
    "text": ("a text", '"text"'),
    "path": ("a path in quotes", "'folder/file'"),
    "choice": ("a text", '"text"'),
    "int_list": ("a list of whole numbers", "[64, 128]"),
    "float_list": ("a list of numbers", "[0.1, 0.2]"),
    "str_list": ("a list of texts", '["attn.to_q", "attn.to_k"]'),
    "table": ("a table", '{ name = "value" }'),
    "tables": ("rows", ""),
}


def explain(setting: Setting, error: Mapping[str, Any]) -> tuple[str, str]:
    """Text and remedy for one of pydantic's errors about a value of ``setting``."""
    kind, context, value = str(error["type"]), error.get("ctx") or {}, error.get("input")
    if kind == "refused":
        return redact(str(context["text"])), redact(str(context["remedy"]))
    if kind == "missing":
        return f"{setting.name} is missing", f"Add {setting.name} = {_example(setting)}"
    if kind == "literal_error":
        return _not_a_choice(setting, value)
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        number = "each number" if setting.kind.endswith("_list") else "it"
        return f"must be {setting.bounds.words()}, not {shown(value)}", _range_remedy(setting, number)
    if kind == "finite_number":
        return "must be a finite number", f"Write a number such as {_example(setting)}"
    if kind in ("string_too_short", "string_too_long"):
        return _text_length(setting, kind, context)
    if kind in ("too_short", "too_long"):
        return _list_length(setting, kind, context)
    return _wrong_type(setting, value)


def shown(value: Any) -> str:
    """A value as it would stand in a file, short, without secrets."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    text = redact(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _example(setting: Setting) -> str:
    if setting.kind == "tables":
        columns = ", ".join(f"{c.name} = {_example(c)}" for c in setting.columns if c.required)
        return f"[{{ {columns} }}]"
    if setting.choices:
        return f'"{setting.choices[0]}"'
    if setting.default is not None and setting.default != "" and not isinstance(setting.default, dict):
        return shown(setting.default)
    bounds = setting.bounds
    if setting.kind == "int" and bounds.ge is not None and bounds.ge > 1:
        return str(int(bounds.ge))
    return _KINDS[setting.kind][1]


def _unset(setting: Setting) -> str:
    return ", or leave it empty" if setting.nullable else ""


def _wrong_type(setting: Setting, value: Any) -> tuple[str, str]:
    wanted = _KINDS[setting.kind][0]
    if setting.kind == "tables":
        table = f"[[{setting.path}]]"
        return (
            f"must be rows, not {shown(value)}",
            f"Write each row under a line {table}, with {_example(setting)[3:-3]}",
        )
    if setting.choices:
        wanted = f"one of {', '.join(setting.choices)}"
    return f"must be {wanted}, not {shown(value)}", f"Write {setting.name} = {_example(setting)}{_unset(setting)}"


def _not_a_choice(setting: Setting, value: Any) -> tuple[str, str]:
    choices = setting.choices or ()
    text = f"must be {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}, not {shown(value)}"
    near = nearest_choice(value, choices) if isinstance(value, str) else None
    return text, f"Did you mean {near}?" if near else f"Choose one of these{_unset(setting)}"


def _range_remedy(setting: Setting, number: str) -> str:
    if setting.nullable:
        return f"Choose {number} in this range, or leave it empty for none"
    return f"Choose {number} in this range; {_example(setting)} is the default"


def _text_length(setting: Setting, kind: str, context: Mapping[str, Any]) -> tuple[str, str]:
    if kind == "string_too_long":
        return f"is longer than {context.get('max_length')} characters", "Shorten it"
    if setting.required or setting.nullable or not setting.default:
        return "must not be empty", f"Write {setting.name} = {_example(setting)}{_unset(setting)}"
    return "must not be empty", f"Remove the line for {shown(setting.default)}, or write another value"


def _list_length(setting: Setting, kind: str, context: Mapping[str, Any]) -> tuple[str, str]:
    wanted = context.get("min_length") if kind == "too_short" else context.get("max_length")
    unit = "row" if setting.kind == "tables" else "entry" if wanted == 1 else "entries"
    limit = "at least" if kind == "too_short" else "at most"
    return f"must hold {limit} {wanted} {unit}", f"Write {setting.name} = {_example(setting)}{_unset(setting)}"
