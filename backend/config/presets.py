"""Manages presets: settings files with a name. The built-in ones are read only; a person's own are in presets/user/.

A preset is a whole config: loading one leaves nothing of what was on the screen. Nothing is ever lost here: a deleted
or overwritten preset goes to presets/user/.trash/, from where it can come back.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from backend.base.errors import Refused
from backend.base.files import NAME_BYTES, cut_name, unused_path, write_atomic
from backend.base.paths import BUILTIN_PRESETS, USER_PRESETS
from backend.base.problems import Problem, errors
from backend.config.load import Loaded
from backend.config.load import load as load_file
from backend.config.reading import read_file
from backend.config.schema import Config
from backend.config.toml_io import dump, dumps

_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
# Windows takes the raised digits for the plain ones, and blanks before the dot for none.
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE)
_LONGEST_NAME = 80
# a preset in the trash has the time and a number behind its name
_LONGEST_ENDING = "-20260101-000000-99.toml"


@dataclass(frozen=True)
class Shelf:
    """Where presets live: the built-in ones and a person's own."""

    builtin: Path = BUILTIN_PRESETS
    user: Path = USER_PRESETS

    @property
    def trash(self) -> Path:
        """Where deleted and overwritten presets go."""
        return self.user / ".trash"


@dataclass(frozen=True)
class Preset:
    """One preset. description: the first line of the comment at the top of its file."""

    name: str
    path: Path
    builtin: bool
    description: str


@dataclass(frozen=True)
class Trashed:
    """A preset that was deleted: where it is now and what it was called."""

    name: str
    path: Path


@dataclass(frozen=True)
class Imported:
    """preset: None when the file has errors, and then nothing was written. problems: errors and warnings."""

    preset: Preset | None
    problems: list[Problem]


SHELF = Shelf()


def list_presets(shelf: Shelf = SHELF) -> list[Preset]:
    """The built-in presets, then the person's own, each by name. Unreadable files are listed; loading says why."""
    presets = [
        _preset(path, folder == shelf.builtin) for folder in (shelf.builtin, shelf.user) for path in _files(folder)
    ]
    return sorted(presets, key=lambda preset: (not preset.builtin, preset.name.casefold()))


def find(name: str, shelf: Shelf = SHELF) -> Preset:
    """The preset of this name, in any letter case. Refused when there is none."""
    for preset in list_presets(shelf):
        if preset.name.casefold() == name.strip().casefold():
            return preset
    known = ", ".join(preset.name for preset in list_presets(shelf))
    raise Refused(f'There is no preset "{name}".', f"Choose one of these: {known or 'none yet'}.")


def load(preset: Preset) -> Loaded:
    """The preset's settings; what it does not name has its default."""
    return load_file(preset.path)


def save(cfg: Config, name: str, description: str = "", overwrite: bool = False, shelf: Shelf = SHELF) -> Preset:
    """Save settings as a preset of the person's own.

    description: one line, kept as a comment at the top. overwrite: replace the person's own preset of this name; the
    old one goes to the trash. Refused for a name that can't be a file's, is taken, or is a built-in preset's.
    """
    name = _checked(name)
    old = _taken(name, shelf)
    if old is not None and (old.builtin or not overwrite):
        kind = "a built-in preset" if old.builtin else "a preset"
        raise Refused(f'There is {kind} "{old.name}" already.', "Choose another name.")
    shelf.user.mkdir(parents=True, exist_ok=True)
    dumps(cfg)  # whatever can't be written must fail before the old preset moves
    if old is not None:
        _to_trash(old, shelf, keep=True)
    path = old.path if old is not None else shelf.user / f"{name}.toml"
    dump(cfg, path, comment=" ".join(description.split()))
    return _preset(path, False)


def rename(preset: Preset, name: str, shelf: Shelf = SHELF) -> Preset:
    """Give one of the person's own presets another name; its file is moved, not rewritten."""
    _own(preset, "renamed")
    name = _checked(name)
    old = _taken(name, shelf)
    if old is not None and old.path != preset.path:
        raise Refused(f'There is a preset "{old.name}" already.', "Choose another name.")
    target = preset.path.with_name(f"{name}.toml")
    os.replace(preset.path, target)
    return _preset(target, False)


def delete(preset: Preset, shelf: Shelf = SHELF) -> Trashed:
    """Move one of the person's own presets to the trash; ``restore`` brings it back."""
    _own(preset, "deleted")
    return _to_trash(preset, shelf, keep=False)


def restore(trashed: Trashed, shelf: Shelf = SHELF) -> Preset:
    """Bring a deleted preset back, under a free name when its own was taken meanwhile."""
    if not trashed.path.is_file():
        raise Refused(f'The preset "{trashed.name}" is no longer in the trash.', f"Look in {shelf.trash}.")
    target = shelf.user / f"{_free_name(trashed.name, shelf)}.toml"
    os.replace(trashed.path, target)
    return _preset(target, False)


def export(preset: Preset, target: str | Path, overwrite: bool = False) -> Path:
    """Copy a preset's file, comments and all, to ``target`` (a file, or a folder to put it in)."""
    path = Path(target)
    if path.is_dir():
        path = path / preset.path.name
    if path.exists() and not overwrite:
        raise Refused(f"{path} exists already.", "Choose another name or folder.")
    if not path.parent.is_dir():
        raise Refused(f"There is no folder {path.parent}.", "Make it, or choose another one.")
    write_atomic(path, preset.path.read_bytes())
    return path


def import_(source: str | Path, name: str | None = None, shelf: Shelf = SHELF) -> Imported:
    """Take a TOML file in as a preset of the person's own, as it is, if it has no errors.

    name: what to call it; the file's own name when left out, with a number behind it when that is taken.
    """
    source = Path(source)
    loaded = load_file(source)
    if errors(loaded.problems):
        return Imported(None, loaded.problems)
    wanted = _checked(name) if name is not None else _shortened(_NOT_IN_NAMES.sub("-", source.stem).strip(" ."))
    if name is not None and _taken(wanted, shelf) is not None:
        raise Refused(f'There is a preset "{wanted}" already.', "Choose another name.")
    if not wanted or _RESERVED.fullmatch(wanted):
        wanted = "imported"
    shelf.user.mkdir(parents=True, exist_ok=True)
    target = shelf.user / f"{_free_name(wanted, shelf)}.toml"
    write_atomic(target, source.read_bytes())
    return Imported(_preset(target, False), loaded.problems)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.suffix == ".toml" and not path.name.startswith(".")]


def _preset(path: Path, builtin: bool) -> Preset:
    try:
        facts = path.stat()
    except OSError:
        return Preset(path.stem, path, builtin, "")
    return Preset(path.stem, path, builtin, _description(path, facts.st_mtime_ns, facts.st_size))


@functools.lru_cache(maxsize=1000)
def _description(path: Path, modified_ns: int, size: int) -> str:
    """The comment at the top of a file as it was then. The page lists all presets at each button."""
    first = (read_file(path).text or "").lstrip().split("\n", 1)[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def _taken(name: str, shelf: Shelf) -> Preset | None:
    # Letter case does not tell files apart on Windows and macOS, so it does not here either.
    return next((p for p in list_presets(shelf) if p.name.casefold() == name.casefold()), None)


def _free_name(name: str, shelf: Shelf) -> str:
    candidate, number = name, 2
    while _taken(candidate, shelf) is not None:
        candidate = f"{name}-{number}"
        number += 1
    return candidate


def _checked(name: str) -> str:
    name = name.strip()
    bad = _NOT_IN_NAMES.search(name)
    if bad:
        raise Refused(
            f"A preset's name can't contain {bad.group()!r}: \"{name}\".", "Use letters, digits, spaces, - and _."
        )
    if not name or name.startswith(".") or name.endswith(".") or _RESERVED.fullmatch(name):
        raise Refused(f'"{name}" can\'t be the name of a preset.', "Use letters, digits, spaces, - and _.")
    if len(name) > _LONGEST_NAME:
        raise Refused(f"The name is longer than {_LONGEST_NAME} characters.", "Choose a shorter one.")
    size, most = len(name.encode("utf-8", "surrogatepass")), NAME_BYTES - len(_LONGEST_ENDING)
    if size > most:
        remedy = f"Choose a shorter one: {most // 3} letters if they are not Latin."
        raise Refused(f"The name takes {size} bytes, and a preset's name may have {most}.", remedy)
    return name


def _shortened(name: str) -> str:
    return cut_name(name[:_LONGEST_NAME], NAME_BYTES - len(_LONGEST_ENDING)).strip(" .")


def _own(preset: Preset, what: str) -> None:
    if preset.builtin:
        raise Refused(f'"{preset.name}" is built in and can\'t be {what}.', "Save it under another name first.")
    if not preset.path.is_file():
        raise Refused(f'The preset "{preset.name}" no longer exists.', "Open the list again.")


def _to_trash(preset: Preset, shelf: Shelf, keep: bool) -> Trashed:
    shelf.trash.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target = unused_path(shelf.trash / f"{preset.name}-{stamp}.toml")
    if keep:
        shutil.copy2(preset.path, target)
    else:
        os.replace(preset.path, target)
    return Trashed(preset.name, target)
