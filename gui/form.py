"""Converts the form's values to a Config and back, with every problem on the way.

Values travel as the widgets hold them (text, bool, lists of rows), by setting path. Numbers stay text until the schema
reads them, so that a mistyped one keeps its place on the page and gets the schema's own sentence.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from backend.base.problems import Problem
from backend.config.coerce import coerce
from backend.config.declare import Setting
from backend.config.load import Loaded, parse
from backend.config.schema import Config, by_path, settings
from gui import fields

Values = dict[str, Any]

_UNSET = object()


def defaults() -> Values:
    """Every setting at its default, as the widgets show it."""
    return {setting.path: fields.to_widget(setting, setting.default) for setting in settings()}


def to_values(config: Config) -> Values:
    """A Config as the widgets show it. Every setting is in it, so nothing stays of what was on screen before."""
    sections = config.model_dump()
    return {s.path: fields.to_widget(s, sections[s.section][s.name]) for s in settings()}


def complete(values: Mapping[str, Any]) -> Values:
    """Known values, with defaults where one is missing: a draft of an older version, or of another set of settings.

    A switch that has become a choice since: on stays on, off was its default and is the choice's now.
    """
    known = {path: values.get(path, value) for path, value in defaults().items()}
    for setting in settings():
        if isinstance(value := known[setting.path], bool) and setting.choices:
            known[setting.path] = fields.to_widget(setting, coerce(setting, True) if value else setting.default)
    return known


def read(values: Mapping[str, Any]) -> Loaded:
    """The Config that the form shows, or None, with every problem there is."""
    data, problems = to_data(values)
    loaded = parse(data)
    problems += loaded.problems
    blocked = any(problem.severity == "error" for problem in problems)
    return Loaded(None if blocked else loaded.config, problems, loaded.partial)


def to_data(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Nested data as a TOML file would give it, and what could not even be read as such."""
    data: dict[str, Any] = {}
    problems: list[Problem] = []
    for setting in settings():
        if setting.path not in values:
            continue
        try:
            value = from_widget(setting, values[setting.path])
        except ValueError as wrong:
            problems.append(Problem(setting.path, None, str(wrong), _remedy(setting)))
            continue
        if value is not _UNSET:
            data.setdefault(setting.section, {})[setting.name] = value
    return data, problems


def from_widget(setting: Setting, raw: Any) -> Any:
    """What a widget holds, as a file has it; ``_UNSET`` where the file has nothing.

    Raises ValueError with a sentence where the text has no meaning at all.
    """
    if setting.kind == "tables":
        rows = [_row(setting, row) for row in raw or []]
        return rows if rows or not setting.nullable else _UNSET
    if setting.kind == "bool":
        return bool(raw)
    text = "" if raw is None else str(raw)
    if setting.kind in ("str", "text"):
        # Spaces may be meant in a text; a text of nothing else is none.
        return _UNSET if setting.nullable and not text.strip() else text
    text = text.strip()
    if setting.kind in ("int_list", "float_list", "str_list", "table"):
        return _collection(setting, text)
    if text:
        return fields.choice_of(setting, text) if setting.kind == "choice" else text
    if setting.nullable:
        return _UNSET
    raise ValueError(f"{setting.label} is empty.")


def _collection(setting: Setting, text: str) -> Any:
    if not text and setting.nullable:
        return _UNSET
    if setting.kind == "table":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as wrong:
            raise ValueError(f"{setting.label} can't be read: {wrong}.") from None
    if setting.kind == "str_list":
        return [line.strip() for line in text.splitlines() if line.strip()]
    return [_number(item) for item in text.replace(",", " ").replace(";", " ").split()]


def _number(text: str) -> Any:
    """A number where it is one; the text itself otherwise, for the schema to refuse by name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _row(setting: Setting, row: Mapping[str, Any]) -> dict[str, Any]:
    read_row: dict[str, Any] = {}
    for column in setting.columns:
        if column.name not in row:
            continue
        raw = row[column.name]
        if column.kind != "bool" and (raw is None or str(raw).strip() == ""):
            # An empty cell takes the column's default; a cell that a row can't do without is reported by the schema.
            if column.required:
                read_row[column.name] = ""
            continue
        read_row[column.name] = from_widget(column, raw)
    return read_row


def _remedy(setting: Setting) -> str:
    if setting.kind == "table":
        return "Write one NAME = VALUE per line, with text in double quotes."
    shown = fields.to_widget(setting, setting.default)
    return f"Enter a value. The default is {shown}." if shown else "Enter a value."


def changed(values: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Paths whose value differs between two forms."""
    return [setting.path for setting in settings() if values.get(setting.path) != base.get(setting.path)]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, str]]:
    """What would change from one form to another, as text, one row for each setting."""
    rows = []
    for path in changed(after, before):
        setting = by_path()[path]
        rows.append(
            {
                "path": path,
                "label": fields.full_label(setting),
                "tab": fields.TABS[fields.group_of(setting).tab],
                "before": _shown(setting, before.get(path)),
                "after": _shown(setting, after.get(path)),
            }
        )
    return rows


def _shown(setting: Setting, raw: Any) -> str:
    if setting.kind == "tables":
        rows = raw or []
        first = setting.columns[0].name if setting.columns else ""
        return "; ".join(_short(str(row.get(first, ""))) for row in rows) or "none"
    if setting.kind == "bool":
        return "on" if raw else "off"
    return _short(fields.title_of(setting, raw or "").replace("\n", ", ")) or "not set"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def has_errors(problems: Iterable[Problem]) -> bool:
    """Whether any of them stops a start or a save."""
    return any(problem.severity == "error" for problem in problems)
