"""Takes values that another program has at each folder, and Monotile once for all folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backend.importers.notes import Note
from backend.importers.program import Fields
from backend.importers.values import is_off, number

Rows = list[tuple[str, Mapping[str, Any]]]
"""Place of each folder that stays, and its values by the path below it."""


def take_for_all(
    fields: Fields,
    base: str,
    rows: Rows,
    name: str,
    goal: str,
    value: Callable[[Any], Any] = number,
    near: str = "",
    folders: int | None = None,
) -> bool:
    """Have `goal` hold what folders say as `name`, the largest of them; whether one says anything that is not off.

    base: the path of the list. value: reads one. near: how it differs there. folders: how many there are, where `rows`
    are only those that use it.
    """
    values = [value(row[name]) for _, row in rows if name in row and not is_off(row[name])]
    path = f"{base}[].{name}"
    if not values:
        fields.note(path, "off")
        return False
    differ = len(values) < (folders or len(rows)) or any(each != values[0] for each in values)
    numbers = all(isinstance(each, int | float) for each in values)
    why = "folders differ in it, and Monotile has one value for all" if differ else near
    fields.take(path, goal, max(values) if numbers else values[0], why)
    return True


def column(fields: Fields, base: str, name: str) -> None:
    """Say that `name` of each folder is a column of its row here."""
    fields.note(f"{base}[].{name}", "taken", "", "dataset.folders")


def left(fields: Fields, base: str, names: Iterable[str], why: str) -> None:
    """Say why what each folder has under these names is not needed; what is off there stays off."""
    for name in names:
        for place, row in fields.rows(base):
            if name in row and is_off(row[name]):
                fields.work.notes.append(Note(f"{place}.{name}", "off", ""))
        fields.note(f"{base}[].{name}", "not needed", why)
