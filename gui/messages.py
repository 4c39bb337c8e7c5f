"""Builds the messages from server to page: problems with their fields, and notices."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.config.schema import by_path
from backend.dataset.items import NAMED_FILES, Finding
from gui import fields

Facts = dict[str, Any]

_MOST_FILES = 500


def sentence(text: str) -> str:
    """A capital at the start and a full stop at the end; problems are written to follow a line number."""
    text = text.strip()
    if not text:
        return ""
    # A name such as learning_rate or a path keeps its letters.
    first = text.split(maxsplit=1)[0]
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else text + "."


def problem_facts(problem: Problem) -> Facts:
    """One problem as the page needs it: where the field is, what is wrong, how to fix it."""
    return {
        "path": problem.path,
        **_place(problem),
        "text": sentence(problem.text),
        "remedy": sentence(problem.remedy),
        "line": problem.line,
        "severity": problem.severity,
    }


def _place(problem: Problem) -> Facts:
    """The field that a problem belongs to."""
    setting = by_path().get(problem.setting or "")
    return {
        "id": fields.elem_id(setting.path) if setting else None,
        "tab": fields.TABS[fields.group_of(setting).tab] if setting else None,
        "label": setting.label if setting else None,
    }


def all_problem_facts(problems: Iterable[Problem]) -> list[Facts]:
    """Each problem once, errors first."""
    once = dict.fromkeys(problems)
    return [problem_facts(problem) for problem in sorted(once, key=lambda problem: problem.severity != "error")]


def finding_facts(finding: Finding) -> Facts:
    """One finding of a scan as the page shows it."""
    return {
        "severity": finding.severity,
        "text": sentence(finding.text),
        "remedy": sentence(finding.remedy),
        **_place(Problem(finding.setting, None, "", "")),
        "count": len(finding.files),
        # The sentence names a few; the page can show all.
        "files": [Path(file).name for file in finding.files[:_MOST_FILES]] if len(finding.files) > NAMED_FILES else [],
    }


def notice(text: str, kind: str = "info", action: str = "", request: Facts | None = None) -> Facts:
    """A short message in a corner of the page. action: the label of its button, which sends ``request``."""
    return {"text": text, "kind": kind, "action": action or None, "request": request}


def words(error: Exception) -> str:
    """An error's own text and remedy where it has them, else what Python says."""
    text = getattr(error, "text", None)
    if text:
        return f"{sentence(text)} {sentence(getattr(error, 'remedy', '') or '')}".strip()
    return sentence(str(error) or type(error).__name__)
