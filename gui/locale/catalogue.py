"""Reads the catalogues of ``assets/locale``: one JSON file a language, with the English texts as keys.

``name`` is what the language calls itself, ``stop`` its full stop. ``texts`` holds texts, where ``{1}`` is the first
value; ``counts`` the nouns of numbers in each plural form that the language has (the names of ``Intl.PluralRules``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "locale"
ENGLISH = "en"
MARK = re.compile(r"\{\w+\}")


@dataclass(frozen=True)
class Catalogue:
    """The texts of one language."""

    language: str
    """The code that browsers know: ``de``, ``zh-CN``. It is the name of the file."""
    name: str
    stop: str = "."
    texts: dict[str, str] = field(default_factory=dict)
    counts: dict[str, dict[str, str]] = field(default_factory=dict)

    def translate(self, text: str) -> str:
        """The text in this language; in English where it is not translated."""
        return self.texts.get(text) or text

    def write(self, path: Path) -> None:
        """Write the file, in the order of its keys, so that two people's changes rarely touch."""
        content: dict[str, Any] = {"name": self.name, "stop": self.stop}
        content |= {"texts": dict(sorted(self.texts.items())), "counts": dict(sorted(self.counts.items()))}
        from backend.base.files import write_atomic

        write_atomic(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())


def read(path: Path) -> Catalogue:
    """Read a file. ValueError names it when it is no catalogue."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Catalogue(path.stem, content["name"], content["stop"], content["texts"], content["counts"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise ValueError(f"{path} is no catalogue: {wrong!r}. docs/translating.md describes it.") from None


def files() -> list[Path]:
    """The file of each language."""
    return sorted(FOLDER.glob("*.json"))


@cache
def catalogues() -> dict[str, Catalogue]:
    """All languages but English, by code. Read once: the page is started again after a change."""
    return {each.language: each for each in map(read, files())}


def languages() -> list[tuple[str, str]]:
    """(code, name in itself) of every language that the page has, English first."""
    return [(ENGLISH, "English"), *((code, each.name) for code, each in catalogues().items())]


def best_language(accepted: str, available: Iterable[str]) -> str:
    """The language to begin with, from a browser's ``Accept-Language``: ``zh-TW`` takes ``zh-CN`` before English."""
    codes = list(available)
    wishes = []
    for number, part in enumerate(accepted.split(",")):
        name, _, quality = part.strip().partition(";q=")
        try:
            wishes.append((-float(quality or 1), number, name.strip().lower()))
        except ValueError:
            continue
    for weight, _, wish in sorted(wishes):
        if weight == 0 or not wish:
            continue
        whole = [code for code in codes if code.lower() == wish]
        alike = [code for code in codes if code.lower().split("-")[0] == wish.split("-")[0]]
        if whole or alike:
            return (whole or alike)[0]
    return ENGLISH
