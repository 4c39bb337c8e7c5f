"""Finds the saved state that a run resumes from, without loading it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from backend.base.files import open_file

_NAME = re.compile(r"step-(\d{8})(\+\d+)?(-\d+)?")


def newest_state(folder: Path) -> Path | None:
    """The newest whole state in a run's ``state/``, or None; half-written ones don't count."""
    try:
        with open_file(folder / "latest") as stream:
            named = folder / stream.read(200).decode("utf-8", "replace").strip()
        if _NAME.fullmatch(named.name) and _is_whole(named):
            return named
    except (OSError, ValueError):
        pass
    try:
        whole = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and _is_whole(path)]
        return max(whole, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


def state_step(folder: Path) -> int | None:
    """The step that the newest whole state in a run's ``state/`` was saved at; None when there is none."""
    state = newest_state(folder)
    if state is None:
        return None
    try:
        with open_file(state / "position.json") as stream:
            step = json.load(stream)["position"]["step"]
        return step if isinstance(step, int) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        match = _NAME.fullmatch(state.name)
        return int(match[1]) if match else None


def _is_whole(state: Path) -> bool:
    # written last of its files
    return (state / "position.json").is_file()
