"""Control pictures: what a model that edits starts from, paired with its results by name. Torch-free."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from backend.config.problems import Problem
from backend.data.images import BadImage, probe
from backend.data.items import NAMED_FILES, Finding, Item, count_of
from backend.data.scan_cache import Measured
from backend.data.walk import walk
from backend.refused import Refused


class Pair(Protocol):
    """A picture of the scan that a control is looked up for."""

    path: Path
    control: Item | None


def pair(
    found: Sequence[Pair], folder: Path, control: Path, setting: str, measure: Callable[[list[Path]], list[Measured]]
) -> list[Finding]:
    """Give each picture of `folder` the picture of the same name below `control`; findings name what is missing.

    Names are compared without ending and letter case, sub-folders included. setting: that chose `folder`.
    """
    setting = setting.removesuffix(".path") + ".control_path"
    if not control.is_dir():
        text = f"The control folder {control} does not exist"
        return [Finding("no_control_folder", "error", text, "Check the path.", (), setting)]
    names = {_name(path, control): path for pictures in walk(control).pictures.values() for path in pictures}
    wanted = [(each, names.get(_name(each.path, folder))) for each in found]
    there = [(each, path) for each, path in wanted if path is not None]
    faults = []
    for (each, path), seen in zip(there, measure([path for _, path in there]), strict=True):
        if seen.fault is None:
            each.control = Item(seen.key, path, seen.width, seen.height, "", has_alpha=seen.has_alpha)
        else:
            faults.append(f"{path}: {seen.fault}")
    missing = [str(each.path) for each, path in wanted if path is None]
    findings = []
    if missing:
        text = f"{count_of(len(missing), 'picture')} without a control picture: {', '.join(missing[:NAMED_FILES])}"
        remedy = f"Put one of the same name into {control}, or take the picture out."
        findings.append(Finding("no_control", "error", text, remedy, tuple(missing), setting))
    if faults:
        text = f"{count_of(len(faults), 'control picture')} can't be used: {', '.join(faults[:NAMED_FILES])}"
        findings.append(Finding("bad_control", "error", text, "Export them again.", tuple(faults), setting))
    return findings


def control_item(path: Path, setting: str) -> Item:
    """The control picture of a sample. Refused when it can't be read."""
    try:
        data = path.read_bytes()
        seen = probe(io.BytesIO(data))
    except (OSError, BadImage) as error:
        text = f"The control picture {path} can't be used: {error}"
        raise Refused.of([Problem(setting, None, text, "Choose a picture file.")]) from error
    return Item(hashlib.sha256(data).hexdigest(), path, seen.width, seen.height, "", has_alpha=seen.has_alpha)


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix().casefold()
