"""Describes what is wrong with a setting, a file or a data set, for the person who has to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One mistake or oddity.

    path: the setting it belongs to, e.g. ``dataset.batch_size`` or ``dataset.folders[1].path``; None for a whole file.
    line: line in the TOML file (from 1), None where there is no file.
    text: what is wrong, one sentence. remedy: what to do about it, one sentence.
    severity: an ``error`` stops a start, a ``warning`` is shown and does not stop it.
    """

    path: str | None
    line: int | None
    text: str
    remedy: str
    severity: Severity = "error"

    @property
    def setting(self) -> str | None:
        """The path of the declared setting, without row and column: ``dataset.folders`` for a row's path."""
        return None if self.path is None else re.split(r"\[\d", self.path, maxsplit=1)[0]

    def sentence(self) -> str:
        """Place, text and remedy as one line for a terminal or a summary."""
        place = ", ".join(p for p in (f"line {self.line}" if self.line else "", self.path or "") if p)
        words = sentences(self.text, self.remedy)
        return f"{place}: {words}" if place else words


def sentences(*parts: str | None) -> str:
    """The parts in one line, each as a sentence of its own; empty ones are left out."""
    filled = [part.strip() for part in parts if part and part.strip()]
    return " ".join(part if part[-1] in ".!?" else part + "." for part in filled)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Only those that stop a start."""
    return [p for p in problems if p.severity == "error"]
