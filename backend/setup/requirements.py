"""Reads requirements files, as far as our own files use the format."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:==\s*(?P<version>[^\s,;]+))?")


@dataclass(frozen=True)
class Requirement:
    """One line. `version` is set for an exact pin; `text` is what pip is given, marker included."""

    name: str
    version: str | None
    text: str


def read(path: Path) -> list[Requirement]:
    """The requirements of a file in its order; comments and empty lines left out."""
    requirements = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = re.split(r"(?:^|\s)#", line)[0].strip()
        match = _LINE.match(text)
        if match:
            requirements.append(Requirement(match["name"], match["version"], text))
    return requirements


def digest(path: Path) -> str:
    """The hash that decides whether a file's packages are installed again. Line endings don't count."""
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()


def older_than(version: str, floor: tuple[int, ...]) -> bool:
    """Whether a version such as '2.11.0a0+cu130' is older than `floor`; only its leading numbers are compared."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return numbers is None or tuple(int(part) for part in numbers[0].split(".")) < floor


def fits(installed: str | None, requirement: Requirement) -> bool:
    """Whether an installed version is the pinned one; a local part ('+cpu') does not count."""
    if installed is None or requirement.version is None:
        return installed is not None
    return installed.split("+")[0] == requirement.version.split("+")[0]
