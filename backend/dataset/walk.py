"""Walks an image folder: which files are pictures, which are captions, what is ignored, what can't be read."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from backend.config.endings import CLIPS
from backend.dataset.images import EXTENSIONS, UNREAD_EXTENSIONS

log = logging.getLogger(__name__)

_SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini", ".ds_store", "ehthumbs.db", "icon\r"})
_SYSTEM_FOLDERS = frozenset({"__macosx", "$recycle.bin", "system volume information", "@eadir"})
_NAMED = re.compile(r"(\d+)_(.+)")


@dataclass
class Walk:
    """Files below one folder, in a fixed order (by name, folder by folder).

    pictures: paths by the folder they lie in, with clips where they are wanted. texts: every other file's full name, to
    look captions up in. unread: pictures of a kind that can't be read. special: pipes, sockets and devices, which are
    never opened. ignored, other: counts by reason and by ending. closed: folders that could not be listed.
    """

    pictures: dict[Path, list[Path]] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    unread: list[Path] = field(default_factory=list)
    special: list[Path] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    closed: list[Path] = field(default_factory=list)


def walk(root: Path, clips: bool = False) -> Walk:
    """All files below `root`; links to folders are followed, loops of links are not. clips: are among the pictures."""
    files = Walk()
    seen: set[str] = set()
    folders = [root]
    while folders:
        folder = folders.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            log.debug("can't list %s: %s", folder, error)
            files.closed.append(folder)
            continue
        # A stack: pushed in reverse, so that folders come out by name.
        inner = [entry for entry in entries if _is_folder(entry) and not _skip(entry.name, files)]
        folders += [Path(entry.path) for entry in reversed(inner)]
        for entry in entries:
            if not _is_folder(entry):
                _sort(entry, folder, files, EXTENSIONS | CLIPS if clips else EXTENSIONS)
    return files


def named_repeats(folder: Path) -> int | None:
    """The number in front of a folder's name (`10_name` is 10), None without one."""
    match = _NAMED.fullmatch(folder.name)
    return int(match.group(1)) if match else None


def named_words(folder: Path) -> str | None:
    """The words behind the number of a folder's name (`10_sks dog` is "sks dog"), None without a number."""
    match = _NAMED.fullmatch(folder.name)
    return match.group(2).strip() or None if match else None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_special(entry: os.DirEntry[str]) -> bool:
    """Whether opening it could wait for ever or never end. What can't be asked about is left to be read and named."""
    try:
        return stat.S_IFMT(entry.stat().st_mode) not in (stat.S_IFREG, 0)
    except OSError:
        return False


def _skip(name: str, files: Walk) -> bool:
    if name.startswith(".") or name.casefold() in _SYSTEM_FOLDERS:
        files.ignored["hidden or system folders"] += 1
        return True
    return False


def _sort(entry: os.DirEntry[str], folder: Path, files: Walk, endings: frozenset[str]) -> None:
    name = entry.name
    if name.startswith("._"):
        files.ignored["macOS shadow files (._*)"] += 1
    elif name.startswith(".") or name.casefold() in _SYSTEM_FILES:
        files.ignored["hidden or system files"] += 1
    elif _is_special(entry):
        files.special.append(Path(entry.path))
    else:
        ending = os.path.splitext(name)[1].lower()
        if ending in endings:
            files.pictures.setdefault(folder, []).append(Path(entry.path))
        elif ending in UNREAD_EXTENSIONS:
            files.unread.append(Path(entry.path))
        else:
            files.texts.add(entry.path)
            files.other[ending or "without ending"] += 1
