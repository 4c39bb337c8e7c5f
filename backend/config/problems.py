"""What is wrong with a setting, a file or a data set, in words for the person who has to mend it."""

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
    severity: an ``error`` stops a start, a ``warning`` is shown and goes on.
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
        parts = [_stop(self.text), _stop(self.remedy)]
        said = " ".join(p for p in parts if p)
        return f"{place}: {said}" if place else said


def _stop(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Only those that stop a start."""
    return [p for p in problems if p.severity == "error"]
