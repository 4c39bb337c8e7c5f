"""Explains pydantic's errors to a person: what is wrong with one value, and the fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backend.base.redact import redact
from backend.config.names import nearest_choice
from backend.config.schema import Bounds, Setting

_KINDS = {
    "bool": ("must be true or false, not {value}", "true"),
    "int": ("must be a whole number, not {value}", "1"),
    "float": ("must be a number, not {value}", "0.5"),
    "str": ("must be a text, not {value}", '"text"'),
    "text": ("must be a text, not {value}", '"text"'),
    "path": ("must be a path in quotes, not {value}", "'folder/file'"),
    "choice": ("must be a text, not {value}", '"text"'),
    "int_list": ("must be a list of whole numbers, not {value}", "[64, 128]"),
    "float_list": ("must be a list of numbers, not {value}", "[0.1, 0.2]"),
    "str_list": ("must be a list of texts, not {value}", '["attn.to_q", "attn.to_k"]'),
    "table": ("must be a table, not {value}", '{ name = "value" }'),
    "tables": ("must be rows, not {value}", ""),
}
"""What a value of each kind must be, and an example."""


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
        return _out_of_range(setting.bounds, shown(value)), _range_remedy(setting)
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
    text = _KINDS[setting.kind][0].format(value=shown(value))
    if setting.kind == "tables":
        return text, f"Write each row under a line [[{setting.path}]], with {_example(setting)[3:-3]}"
    if setting.choices:
        text = f"must be one of {', '.join(setting.choices)}, not {shown(value)}"
    return text, f"Write {setting.name} = {_example(setting)}{_unset(setting)}"


def _not_a_choice(setting: Setting, value: Any) -> tuple[str, str]:
    choices = setting.choices or ()
    text = f"must be one of {', '.join(choices)}, not {shown(value)}"
    if len(choices) == 1:
        text = f"can only be {choices[0]}, not {shown(value)}"
    near = nearest_choice(value, choices) if isinstance(value, str) else None
    return text, f"Did you mean {near}?" if near else f"Choose one of these{_unset(setting)}"


def _out_of_range(bounds: Bounds, value: str) -> str:
    """The limits as `Bounds.words` has them, each way to write them a text of its own."""
    low, high = bounds.limits()
    if bounds.ge is not None and bounds.le is not None:
        return f"must be {low} to {high}, not {value}"
    if bounds.ge is not None and bounds.lt is not None:
        return f"must be at least {low} and below {high}, not {value}"
    if bounds.gt is not None and bounds.le is not None:
        return f"must be above {low} and at most {high}, not {value}"
    if bounds.gt is not None and bounds.lt is not None:
        return f"must be above {low} and below {high}, not {value}"
    if bounds.ge is not None:
        return f"must be at least {low}, not {value}"
    if bounds.gt is not None:
        return f"must be above {low}, not {value}"
    return f"must be at most {high}, not {value}" if bounds.le is not None else f"must be below {high}, not {value}"


def _range_remedy(setting: Setting) -> str:
    if setting.kind.endswith("_list"):
        if setting.nullable:
            return "Choose each number in this range, or leave it empty for none"
        return f"Choose each number in this range; {_example(setting)} is the default"
    if setting.nullable:
        return "Choose it in this range, or leave it empty for none"
    return f"Choose it in this range; {_example(setting)} is the default"


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
