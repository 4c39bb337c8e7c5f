"""Lists what differs between two configs, for a person to see before one replaces the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backend.config.schema import Config, Section, Setting, get, settings


@dataclass(frozen=True)
class Change:
    """One setting that differs; for a table one cell or one whole row. None is unset, or no such row."""

    path: str
    label: str
    before: Any
    after: Any


def diff(a: Config, b: Config) -> list[Change]:
    """The changes that lead from ``a`` to ``b``, in the order of the form."""
    return [change for s in settings() for change in _changes(s, get(a, s.path), get(b, s.path))]


def _changes(setting: Setting, before: Any, after: Any) -> list[Change]:
    if before == after:
        return []
    if setting.kind != "tables":
        return [Change(setting.path, setting.label, before, after)]
    old, new = before or [], after or []
    changes: list[Change] = []
    for index in range(max(len(old), len(new))):
        path = f"{setting.path}[{index}]"
        if index < len(old) and index < len(new):
            for column in setting.columns:
                was, now = getattr(old[index], column.name), getattr(new[index], column.name)
                if was != now:
                    changes.append(Change(f"{path}.{column.name}", f"{setting.label}: {column.label}", was, now))
        else:
            gone, come = (_row(old[index]), None) if index < len(old) else (None, _row(new[index]))
            changes.append(Change(path, setting.label, gone, come))
    return changes


def _row(row: Section) -> dict[str, Any]:
    return row.model_dump()


def shown(value: Any) -> str:
    """A setting's value as people read it, in one line."""
    if value is None or value == "" or value == []:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items() if item not in (None, "", [], {}))
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return " ".join(str(value).split())
