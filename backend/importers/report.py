"""Reports what an import would change and what it leaves out, as lines for a terminal."""

from __future__ import annotations

from typing import Any

from backend.config.diff import diff
from backend.config.schema import Config
from backend.config.toml_io import dumps_value
from backend.importers.convert import Converted
from backend.importers.notes import HEADINGS


def render(converted: Converted, before: Config) -> list[str]:
    """The difference from `before`, then every name that is not taken as it is, with its line and the reason."""
    config = converted.loaded.config
    lines = [f"This file contains {converted.title}."]
    changes = diff(before, config) if config is not None else []
    lines.append(f"Changes from the defaults: {len(changes)}")
    lines += [f"  {change.path}: {_shown(change.before)} -> {_shown(change.after)}" for change in changes]
    for heading, fates in HEADINGS:
        notes = converted.with_fate(*fates)
        if notes:
            lines += ["", f"{heading}: {len(notes)}"]
            lines += [f"  {f'line {note.line}: ' if note.line else ''}{note.sentence()}" for note in notes]
    off = [note.key for note in converted.with_fate("off")]
    if off:
        lines += ["", f"Empty or off, so nothing is lost: {', '.join(off)}"]
    lines += [problem.sentence() for problem in converted.loaded.problems]
    return lines


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {dumps_value(item)}" for key, item in value.items() if item is not None)
    return dumps_value(value)
