"""Keeps the folder of a rehearsal: which files are its own, what is used again, and how its processes are started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from backend.base.files import write_atomic
from backend.base.paths import PROJECT_ROOT
from backend.bench.rehearsal.sizes import RehearsalSize
from backend.families.files import headers

_MARK = "rehearsal-folder.txt"
_MARK_TEXT = "Everything in this folder is made, and deleted again, by `launcher.py bench --rehearse`.\n"
_NEW_EACH_TIME = ("pictures", "cache", "compiled", "runs")


def claim(work: Path) -> None:
    """Make `work` a rehearsal's folder. ValueError for a folder that holds other files: they would be deleted."""
    if (work / _MARK).is_file():
        return
    if work.exists() and (not work.is_dir() or any(work.iterdir())):
        raise ValueError(f"--work {work} holds files that no rehearsal made. Give a new or an empty folder.")
    work.mkdir(parents=True, exist_ok=True)
    write_atomic(work / _MARK, _MARK_TEXT)


def clear(work: Path) -> None:
    """Delete what the rehearsal before left in `work`, but for base models."""
    for name in _NEW_EACH_TIME:
        shutil.rmtree(work / name, ignore_errors=True)


def holds(folder: Path, size: RehearsalSize, blocks: int | None) -> bool:
    """Whether `folder` is a base model of this size, whole: another version may have written another one."""
    if not (folder / "model_index.json").is_file():
        return False
    for part in size.facts.parts:
        if not part.shipped:
            continue
        try:
            if headers.read_json(folder / part.folder / part.files[0][0]) != size.config(part, blocks):
                return False
        except OSError:
            return False
    return True


def environment() -> dict[str, str]:
    """The environment of a process that imports this checkout, whatever else its PYTHONPATH names."""
    # whole paths, since the processes run in the project's folder
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT), *paths])}
