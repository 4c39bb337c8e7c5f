"""Keeps and finds a run's resume states: the newest two, each with a hash of every file in it.

A state is a folder ``step-00000100/``. Its ``manifest.json``, written last, holds the size and SHA-256 of each file and
a number that grows with each save, so that a state is known to be whole, and which one is the newest. ``latest`` names
the state that training stands on: the one saved last, or resumed from. States of before there were manifests have
none and are taken as they are.

`newest_state` looks for a state as cheaply as the page needs it, many times a minute; `newest_whole_state` compares
every file with its hash before training continues from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.base.errors import DiskFull, Refused
from backend.base.files import atomic_folder, open_file, unused_path, write_atomic

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
POSITION = "position.json"
LATEST = "latest"
STATE_EVERY_S = 600.0
"""Seconds of training that are lost at most when the process is killed: the state is also kept that often."""

_BROKEN = (ValueError, KeyError, TypeError, AttributeError)
_NAME = re.compile(r"step-(\d{8})(\+\d+)?(-\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeState:
    """The state to continue from."""

    path: Path
    damaged: dict[Path, str]
    """What is wrong with each newer one: its folder -> a sentence."""


def keep_state(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a new state and make it the newest of `folder`; return its path.

    The state that training stood on before is kept with it, others are removed. Where the disk has no room for a
    third state, the older of the two goes first.

    Raises:
        DiskFull, WriteFailed: it can't be written; the state that training stands on is untouched.
    """
    before = _latest(folder) or next(iter(_by_age(folder)), None)
    try:
        target = _write(folder, name, write)
    except DiskFull:
        older = [state for state in _states(folder) if state != before]
        if not older:
            raise
        log.warning("The disk has no room for a third state: %s is removed", ", ".join(s.name for s in older))
        _remove(older)
        target = _write(folder, name, write)
    _name_latest(target)
    _remove([state for state in _states(folder) if state not in (target, before)])
    return target


def newest_state(folder: Path) -> Path | None:
    """The state that `LATEST` names, else the newest by its date; None where there is none. No file is compared.

    Half-written ones don't count.
    """
    try:
        with open_file(folder / LATEST) as stream:
            named = folder / stream.read(200).decode("utf-8", "replace").strip()
        if _NAME.fullmatch(named.name) and _is_whole(named):
            return named
    except (OSError, ValueError):
        pass
    try:
        whole = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and _is_whole(path)]
        return max(whole, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


def state_step(folder: Path) -> int | None:
    """The step that the newest whole state in a run's ``state/`` was saved at; None when there is none."""
    state = newest_state(folder)
    if state is None:
        return None
    try:
        with open_file(state / POSITION) as stream:
            step = json.load(stream)["position"]["step"]
        return step if isinstance(step, int) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        match = _NAME.fullmatch(state.name)
        return int(match[1]) if match else None


def _is_whole(state: Path) -> bool:
    # written last of its files
    return (state / POSITION).is_file()


def newest_whole_state(folder: Path) -> ResumeState | None:
    """The newest whole state in `folder`, every file compared with its hash; None where there is no state.

    Left-overs of a crash are removed. Refused when there are states and all are damaged; each is named.
    """
    for path in folder.glob(".*.part"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    damaged: dict[Path, str] = {}
    for state in _by_age(folder):
        problem = damage(state)
        if problem is None:
            return ResumeState(path=state, damaged=damaged)
        damaged[state] = problem
    if damaged:
        text = "No saved state can be used. " + " ".join(damaged.values())
        remedy = "Put the files back from a copy, or start a new run with the newest file of checkpoints/: a LoRA as "
        raise Refused(text, f"{remedy}network_weights, a whole model as base_model.")
    return None


def stand_on(state: Path) -> None:
    """Note that training continues from `state`, so that the next save keeps it."""
    if _latest(state.parent) != state:
        _name_latest(state)


def replaceable_bytes(folder: Path) -> int:
    """Bytes of the states that may give way to a new one: all but the one that training stands on."""
    stands_on = _latest(folder) or next(iter(_by_age(folder)), None)
    older = [state for state in _states(folder) if state != stands_on]
    return sum(path.stat().st_size for state in older for path in state.iterdir())


def damage(state: Path) -> str | None:
    """What is wrong with a state's files, as a sentence; None when each is as it was written."""
    try:
        manifest = _manifest(state)
        if manifest is None:
            return None
        for name, expected in manifest["files"].items():
            path = state / name
            if path.stat().st_size != expected["bytes"]:
                return f"{path} has {path.stat().st_size} bytes, and {expected['bytes']} were written."
            if _sha256(path) != expected["sha256"]:
                return f"{path} is not as it was written: its hash differs."
    except FileNotFoundError as error:
        return f"{error.filename} is missing."
    except OSError as error:
        return f"{error.filename or state} can't be read: {error.strerror or error}."
    except _BROKEN:
        broken = MANIFEST if (state / MANIFEST).exists() else POSITION
        return f"{state / broken} is not as it was written."
    return None


def _name_latest(state: Path) -> None:
    # the manifests' numbers tell the newest too: no reason to lose a save that is there already
    try:
        write_atomic(state.parent / LATEST, state.name)
    except OSError as error:
        log.warning("%s could not be named the newest state: %s", state.name, error)


def _write(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    target = unused_path(folder / name)
    with atomic_folder(target) as temporary:
        write(temporary)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(temporary.iterdir())
        }
        number = 1 + max((_number(state) or 0 for state in _states(folder)), default=0)
        known: dict[str, Any] = {"number": number, "files": files}
        write_atomic(temporary / MANIFEST, json.dumps({**known, "sha256": _own_hash(known)}, indent=1))
    return target


def _manifest(state: Path) -> dict[str, Any] | None:
    """The manifest; None for a state of before there were any. ValueError when it is damaged."""
    try:
        text = (state / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        if json.loads((state / POSITION).read_text(encoding="utf-8")).get("manifest"):
            raise
        return None
    manifest = json.loads(text)
    known = {key: value for key, value in manifest.items() if key != "sha256"}
    if manifest["sha256"] != _own_hash(known):
        raise ValueError("the manifest's own hash differs")
    return manifest


def _number(state: Path) -> int | None:
    """Which save it was, from 1; 0 for one of before there were manifests, None where the manifest is damaged."""
    try:
        return int((_manifest(state) or {}).get("number", 0))
    except (OSError, *_BROKEN):
        return None


def _own_hash(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _latest(folder: Path) -> Path | None:
    try:
        named = folder / (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return named if named in _states(folder) else None


def _states(folder: Path) -> list[Path]:
    """Folders of states; one without position and manifest is none."""
    named = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return [path for path in named if (path / POSITION).exists() or (path / MANIFEST).exists()]


def _by_age(folder: Path) -> list[Path]:
    """The states, newest first."""
    numbers = {path: _number(path) for path in _states(folder)}
    highest = max((number or 0 for number in numbers.values()), default=0)
    latest = _latest(folder)

    def age(path: Path) -> tuple[int, bool, float]:
        number = numbers[path]
        # a damaged manifest has no number: `latest` and the clock say where it stands
        return (highest if number is None else number, path == latest, path.stat().st_mtime)

    return sorted(numbers, key=age, reverse=True)


def _remove(states: list[Path]) -> None:
    for state in states:
        # under a name that no half-removed state can be taken for one
        gone = state.with_name(f".{state.name}.removed.part")
        try:
            state.replace(gone)
        except OSError as error:
            log.warning("The old state %s could not be removed: %s", state, error)
            continue
        shutil.rmtree(gone, ignore_errors=True)
