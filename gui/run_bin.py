"""Keeps deleted runs for a week. Only a folder with this program's own mark of a deleted run is ever removed."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from backend.base.files import open_file, write_atomic
from backend.runs import record
from backend.runs.errors import RunError
from backend.runs.folder import Run

log = logging.getLogger(__name__)

# A folder of this name is nobody else's, wherever a person puts their runs.
FOLDER = ".monotile-bin"
MARK = ".deleted-by-monotile.json"
"""The file inside of a deleted run: what it was called, and when it was deleted."""

# Long enough to change one's mind, short enough not to fill a disk.
_KEPT_S = 7 * 24 * 3600


def put(run: Run) -> str:
    """Move a run into its folder's bin; the token brings it back. RunError when it is at work or can't be moved."""
    if run.is_at_work():
        raise RunError(f"The run {run.name} is still running.", "Stop it first.")
    if not record.is_ours(run.record()) or run.path.is_symlink():
        raise RunError(
            f"The folder {run.path} holds no record that Monotile wrote, so it is not deleted.",
            "Delete it by hand if it is no longer needed.",
        )
    target = run.path.parent / FOLDER / secrets.token_hex(8)
    try:
        target.parent.mkdir(exist_ok=True)
        write_atomic(run.path / MARK, json.dumps({"name": run.name, "deleted": time.time()}, ensure_ascii=False))
        try:
            run.path.rename(target)
        except OSError:
            (run.path / MARK).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(
            f"The run {run.name} can't be deleted: {error.strerror or error}.", "Close programs that use it."
        ) from error
    return target.name


def take_back(root: Path, token: str) -> str | None:
    """Restore a run from the bin of a runs folder; its name, or None where it is not there. RunError."""
    held = next((path for path in _entries(root / FOLDER) if path.name == token), None)
    mark = None if held is None else _mark(held)
    if held is None or mark is None:
        return None
    # a name out of a file is no path
    target = root / Path(mark["name"]).name
    if target.exists():
        raise RunError(f"There is another run named {target.name}.", "Rename or delete that one first.")
    try:
        held.rename(target)
        (target / MARK).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"The run {target.name} can't be restored: {error.strerror or error}.", "Close programs that use it."
        ) from error
    return target.name


def empty(roots: Iterable[Path]) -> None:
    """Remove for good what was deleted a week ago. Whatever has no mark, or an odd one, stays."""
    for root in roots:
        for path in _entries(root / FOLDER):
            mark = _mark(path)
            if mark is not None and time.time() - mark["deleted"] > _KEPT_S:
                log.info("Removing the run %s, which was deleted a week ago.", mark["name"])
                # The mark goes last: what could not be removed now is removed another time.
                for inner in _entries(path):
                    if inner.name != MARK:
                        _remove(inner)
                if [inner.name for inner in _entries(path)] == [MARK]:
                    shutil.rmtree(path, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink()
    except OSError as error:
        log.debug("%s can't be removed yet: %s", path, error)


def _mark(folder: Path) -> dict | None:
    """What the mark of a deleted run says; None for anything else, a link to a folder included."""
    if folder.is_symlink() or not os.path.isdir(folder):
        return None
    try:
        with open_file(folder / MARK) as stream:
            mark = json.loads(stream.read(10_000).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(mark, dict) or not isinstance(mark.get("name"), str):
        return None
    return mark if record.number(mark, "deleted") > 0 and Path(mark["name"]).name else None


def _entries(folder: Path) -> list[Path]:
    try:
        # a link of this name leads to somebody else's folder
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []
