"""Checks what was brought over by our own rules: what these refuse is taken back, and said."""

from __future__ import annotations

from typing import Any

from backend.base.problems import Problem
from backend.config import load
from backend.config.load import Loaded
from backend.config.schema import by_path
from backend.families.table import lacking
from backend.importers.rows import drop_rows
from backend.importers.work import Work

_ROUNDS = 4  # a refused value may hide that of another rule


def checked(work: Work) -> Loaded:
    """Our settings, without what is refused. Errors stay only where no value of the files brings them about."""
    _lacking(work)
    loaded = _parse(work)
    for _ in range(_ROUNDS):
        if not loaded.errors:
            break
        dropped = drop_rows(work, loaded.errors)
        wrong = {_culprit(work, problem): problem for problem in loaded.errors if problem.path not in dropped}
        for path, problem in wrong.items():
            if path is not None:
                work.drop(path, "not offered", f"{problem.text}. {problem.remedy}".strip())
        loaded = _parse(work)
    return loaded


def _culprit(work: Work, problem: Problem) -> str | None:
    """Which value of theirs brings a problem about: its own, or one that a rule holds against a default of ours."""
    if problem.setting in work.ours:
        return problem.setting
    for path in list(work.ours):
        kept = work.ours.pop(path)
        gone = all(each.setting != problem.setting for each in _parse(work).errors)
        work.ours[path] = kept
        if gone:
            return path
    return None


def _lacking(work: Work) -> None:
    """What the family does not have: nothing of it is taken, since it would only be in the way."""
    gone = lacking(work.family_here)
    for path in [path for path in work.ours if path.split(".")[1] in gone]:
        if work.ours[path] == by_path()[path].default:
            del work.ours[path]
            continue
        work.drop(path, "not offered", f"{work.family_here} has no such setting in Monotile")


def _parse(work: Work) -> Loaded:
    data: dict[str, dict[str, Any]] = {}
    for path, value in work.ours.items():
        section, name = path.split(".")
        data.setdefault(section, {})[name] = value
    return load.parse(data)
