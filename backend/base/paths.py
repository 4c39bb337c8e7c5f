"""Resolves where a path in the settings points to."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[2]
BUILTIN_PRESETS = PROJECT_ROOT / "presets"
USER_PRESETS = BUILTIN_PRESETS / "user"
_OF_A_PERSON = frozenset({"desktop", "documents", "downloads", "pictures", "videos", "bin", ".config", ".local"})


def is_on_network(path: str, windows: bool = os.name == "nt") -> bool:
    """Whether opening a path asks another machine by its name: a share of Windows, such as \\\\host\\share.

    Windows then signs in there, so a path that nobody typed must not be opened.
    """
    return windows and path.strip().replace("/", "\\").startswith("\\\\")


def resolve(path: str | Path) -> Path:
    """The absolute path of a path in the settings: ``~`` is the person's home, anything relative is below the project.

    The path need not exist; links are not followed, so that it stays as the person knows it. ValueError for an empty
    path, which would be the project itself.
    """
    if not str(path).strip():
        raise ValueError("an empty path; None is the only unset")
    expanded = Path(path)
    if str(path).startswith("~"):
        try:
            expanded = expanded.expanduser()
        except RuntimeError:
            # There is no such user: the folder may really be called so.
            expanded = Path(path)
    return expanded if expanded.is_absolute() else PROJECT_ROOT / expanded


def is_broad(path: str | Path) -> bool:
    """True for a folder in which a person or the system keeps all kinds of things: home, a drive, Documents."""
    place = Path(os.path.normpath(resolve(path)))
    home = Path.home()
    if place in (PROJECT_ROOT, home, *home.parents) or place == Path(place.anchor):
        return True
    return place.parent == home and place.name.lower() in _OF_A_PERSON
