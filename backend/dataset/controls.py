"""Pairs control pictures, which a model that edits starts from, with their results by name.

A control picture has the name of its result, or where there are several that name with a number behind it, as
musubi-tuner has them: cat_0.png and cat_1.png for cat.png.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.base.problems import Problem
from backend.dataset.images import BadImage, probe, read_picture
from backend.dataset.items import NAMED_FILES, Finding, Item, count_of
from backend.dataset.scan_cache import Measured
from backend.dataset.walk import walk

if TYPE_CHECKING:
    from backend.config.schema import SamplePrompt

_NUMBERED = re.compile(r"(?P<name>.+)_(?P<number>\d+)", re.DOTALL)


class Pair(Protocol):
    """A picture of the scan that a control is looked up for."""

    path: Path
    controls: tuple[Item, ...]


def pair(
    pictures: Sequence[Pair],
    folder: Path,
    control: Path,
    most: int,
    setting: str,
    measure: Callable[[list[Path]], list[Measured]],
) -> list[Finding]:
    """Give each picture of `folder` the pictures of its name below `control`; findings name what is missing.

    Names are compared without ending and letter case, sub-folders included. most: control pictures that one may have.
    setting: that chose `folder`.
    """
    setting = setting.removesuffix(".path") + ".control_path"
    if not control.is_dir():
        text = f"The control folder {control} does not exist"
        return [Finding("no_control_folder", "error", text, "Check the path.", (), setting)]
    files = {_name(path, control): path for paths in walk(control).pictures.values() for path in paths}
    owned = _by_owner(files, {_name(each.path, folder) for each in pictures}, most)
    wanted = [(each, owned.get(_name(each.path, folder), [])) for each in pictures]
    there = [path for _, paths in wanted for path in paths]
    measured = dict(zip(there, measure(there), strict=True))
    for each, paths in wanted:
        if all(measured[path].fault is None for path in paths):
            each.controls = tuple(_item(path, measured[path]) for path in paths)
    faults = [f"{path}: {seen.fault}" for path, seen in measured.items() if seen.fault is not None]
    missing = [str(each.path) for each, paths in wanted if not paths]
    many = [str(each.path) for each, paths in wanted if len(paths) > most]
    findings = []
    if many:
        text = f"{count_of(len(many), 'image')} with more than {count_of(most, 'control image')}"
        text += f", the most that this model takes: {', '.join(many[:NAMED_FILES])}"
        findings.append(Finding("many_controls", "error", text, f"Remove some from {control}.", tuple(many), setting))
    if missing:
        text = f"{count_of(len(missing), 'image')} without a control image: {', '.join(missing[:NAMED_FILES])}"
        remedy = f"Put one with the same name into {control}, or remove the image."
        findings.append(Finding("no_control", "error", text, remedy, tuple(missing), setting))
    if faults:
        text = f"{count_of(len(faults), 'control image')} can't be used: {', '.join(faults[:NAMED_FILES])}"
        findings.append(Finding("bad_control", "error", text, "Export them again.", tuple(faults), setting))
    return findings


def _by_owner(files: Mapping[str, Path], results: Iterable[str], most: int) -> dict[str, list[Path]]:
    """Control pictures, by name, of each of `results`: the one of its very name first, then the numbered ones.

    A name that is itself a result's is no number of another one. most: as in `pair`.
    """
    owned: dict[str, list[tuple[int, Path]]] = {}
    results = set(results)
    for name, path in files.items():
        match = None if name in results else _NUMBERED.fullmatch(name)
        owner, number = (name, -1) if match is None else (match["name"], int(match["number"]))
        owned.setdefault(owner, []).append((number, path))
    if most == 1:
        # one of the very name is enough, and what else has a number is not asked for
        owned = {owner: sorted(paths)[:1] if min(paths)[0] < 0 else paths for owner, paths in owned.items()}
    return {owner: [path for _, path in sorted(paths)] for owner, paths in owned.items()}


def _item(path: Path, seen: Measured) -> Item:
    return Item(seen.key, path, seen.width, seen.height, "", has_alpha=seen.has_alpha)


def sample_items(prompt: SamplePrompt, number: int) -> tuple[Item, ...]:
    """The control pictures of the sample `number`. Refused when one can't be read."""
    place = f"sampling.prompts[{number}]"
    return tuple(_sample_item(resolve(path), f"{place}.{column}") for column, path in prompt.controls.items())


def sample_sizes(prompt: SamplePrompt) -> list[tuple[int, int]]:
    """Width and height in px of a sample's control pictures; a square's of one that can't be read."""
    sizes = []
    for path in map(resolve, prompt.controls.values()):
        try:
            sizes.append(_size(path, path.stat().st_mtime_ns))
        except (OSError, BadImage):
            sizes.append((1, 1))
    return sizes


@lru_cache(maxsize=256)
def _size(path: Path, changed: int) -> tuple[int, int]:
    seen = probe(path)
    return seen.width, seen.height


def _sample_item(path: Path, setting: str) -> Item:
    try:
        data = read_picture(path)
        seen = probe(io.BytesIO(data))
    except (OSError, BadImage) as error:
        text = f"The control image {path} can't be used: {error}"
        raise Refused.of([Problem(setting, None, text, "Choose an image file.")]) from error
    return Item(hashlib.sha256(data).hexdigest(), path, seen.width, seen.height, "", has_alpha=seen.has_alpha)


def _name(path: Path, root: Path) -> str:
    # a list may name files that lie anywhere
    inner = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    return inner.with_suffix("").as_posix().casefold()
