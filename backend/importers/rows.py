"""Takes back single rows of tables that our rules refuse, such as one folder or one prompt, and leaves the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from backend.base.problems import Problem
from backend.config.schema import by_path
from backend.importers.notes import Note, shown
from backend.importers.work import Work

_ROW = re.compile(r"(?P<table>[a-z_]+\.[a-z_]+)\[(?P<row>\d+)\](?:\.(?P<column>\w+))?")


def drop_rows(work: Work, errors: Iterable[Problem]) -> set[str]:
    """Drop what is refused in rows of `work.ours`: a value of a row, or the row where it can't do without that.

    Gives the paths of the problems that this was done for.
    """
    tables: dict[str, dict[int, dict[str, Problem]]] = {}
    for problem in errors:
        place = _ROW.fullmatch(problem.path or "")
        rows = work.ours.get(place["table"]) if place else None
        if place and isinstance(rows, list) and int(place["row"]) < len(rows):
            row = tables.setdefault(place["table"], {}).setdefault(int(place["row"]), {})
            row.setdefault(place["column"] or "", problem)
    for table, refused in tables.items():
        kept = [_kept(work, table, place, row, refused.get(place, {})) for place, row in enumerate(work.ours[table])]
        work.ours[table] = [row for row in kept if row is not None]
    return {str(p.path) for rows in tables.values() for row in rows.values() for p in row.values()}


def _kept(work: Work, table: str, place: int, row: Any, refused: dict[str, Problem]) -> Any:
    """The row without what is refused; None where nothing of it can stay."""
    needed = {column.name for column in by_path()[table].columns if column.required}
    for column, problem in refused.items():
        value = row.get(column) if isinstance(row, dict) else row
        key = f"{work.origin.get(table, table)}[{place}]{f'.{column}' if column else ''}"
        text = shown(column, value)
        work.notes.append(Note(key, "not offered", f"{problem.text}. {problem.remedy}".strip(), None, None, text))
        if value is None or column in needed or not isinstance(row, dict):
            return None
        row = {name: item for name, item in row.items() if name != column}
    return row
