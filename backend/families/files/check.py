"""Checks the files of a base model; what is wrong is named at the setting that gave them, before anything loads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from backend.base.problems import Problem
from backend.families.files import headers, kinds, stored
from backend.families.files.base_model import PLACES, BaseModelFiles, Place, header_of
from backend.families.files.layouts.rules import Piece, UnknownNames
from backend.families.files.parts import Part

_PICKLE = "is a pickle file, which can run code when it is opened"
_SHARD = re.compile(r"-\d{5}-of-(?P<count>\d{5})\.safetensors$")


class ModelFacts(Protocol):
    """What the check needs to know of a family."""

    @property
    def title(self) -> str: ...

    @property
    def pipeline_class(self) -> str: ...

    @property
    def denoiser_class(self) -> str: ...

    @property
    def parts(self) -> tuple[Part, ...]: ...


Families = Mapping[str, str]
"""Pipeline class of model_index.json -> name of the family that it belongs to, for remedies."""


def check_files(
    base: BaseModelFiles, facts: ModelFacts, pipelines: Iterable[str] = (), families: Families = MappingProxyType({})
) -> tuple[list[Problem], bool]:
    """Every problem of the files of `base` as a model of the family, none when its parts can be loaded.

    pipelines: classes that model_index.json may name besides the family's own. Second: whether the base model itself is
    no model of the family at all.
    """
    if base.path is None:
        return [Problem(headers.SETTING, None, "no base model is chosen", _wanted(facts))], True
    if not base.path.exists():
        return [Problem(headers.SETTING, None, f"the base model {base.path} does not exist", _wanted(facts))], True
    if base.path.is_file():
        problems = _check_main_file(base, base.path, facts)
        wrong = bool(problems)
    else:
        problems = _check_index(base.path, facts, pipelines, families)
        wrong = _index_of(base.path) is None
    problems += _check_unused(base, facts)
    for part in facts.parts:
        # What a wrong base model lacks goes without saying.
        if not wrong or part.setting in base.given:
            problems += check_part(base, part)
    return problems, wrong


def check_part(base: BaseModelFiles, part: Part) -> list[Problem]:
    """Everything that is wrong with one part, wherever it lies."""
    place = base.place(part)
    if place is None:
        return _missing(base, part)
    if place.path.is_file() and part.weights:
        return _check_file(place, part)
    if place.path.is_file():
        text = f"{place.path.name} is a file, but {part.title} is a folder"
        return [Problem(place.setting, None, text, f"Choose {_folder_of(part)}.")]
    if not place.path.is_dir() and place.setting != headers.SETTING:
        return [Problem(place.setting, None, f"{place.path} does not exist", f"Choose {_source_of(part)}.")]
    problems = headers.check_folder(place.path.parent, replace(part, folder=place.path.name), base.variant)
    return [replace(problem, path=place.setting) for problem in problems]


def _wanted(facts: ModelFacts) -> str:
    single = " or its single file" if any(part.layouts for part in facts.parts) else ""
    return f"Choose the folder of a {facts.title} model in diffusers layout{single}."


def _check_main_file(base: BaseModelFiles, path: Path, facts: ModelFacts) -> list[Problem]:
    """A base model that is a file must hold the denoiser; what it holds instead is named."""
    denoiser = next(part for part in facts.parts if facts.denoiser_class in part.class_names)
    unreadable = _check_readable(path, headers.SETTING)
    if unreadable:
        return unreadable
    kind = _kind(path)
    if base.place(denoiser) is None or (kind is not None and kind.where):
        return [_not_this(path, denoiser, headers.SETTING)]
    return []


def _check_readable(path: Path, setting: str) -> list[Problem]:
    """A file that is no safetensors file, or not the whole of one."""
    if path.suffix.lower() in headers.UNSAFE:
        return [Problem(setting, None, f"{path.name} {_PICKLE}", headers.SAFE_ONLY)]
    shard = _SHARD.search(path.name)
    if shard and int(shard["count"]) > 1:
        whole = "of the whole model, with model_index.json in it" if setting == headers.SETTING else "that they lie in"
        text = f"{path.name} is one of {int(shard['count'])} files that are read together"
        return [Problem(setting, None, text, f"Choose the folder {whole}.")]
    try:
        header = header_of(path)
    except headers.Unreadable as error:
        return [Problem(setting, None, f"{path.name} {error}", error.remedy)]
    except OSError as error:
        text = f"{path.name} can't be read: {error.strerror or error}"
        return [Problem(setting, None, text, "Check that you have permission to read it.")]
    if header.missing_bytes:
        text = f"{path.name} is cut short: {header.missing_bytes} bytes are missing"
        return [Problem(setting, None, text, "Copy the file again; the download was interrupted.")]
    return []


def _check_file(place: Place, part: Part) -> list[Problem]:
    """One part in a single file: readable, whole, the right kind, every name known, every number readable."""
    path, shown = place.path, place.path.name
    unreadable = _check_readable(path, place.setting)
    if unreadable:
        return unreadable
    kind = _kind(path)
    if place.layout is None or (kind is not None and kind.where == "foreign"):
        return [_not_this(path, part, place.setting)]
    try:
        pieces = place.layout.pieces(header_of(path).tensors, place.prefix)
    except UnknownNames as error:
        return [Problem(place.setting, None, f"{shown} {error}", "Use the file as its authors published it.")]
    except ValueError as error:
        text = f"{shown} can't be used as {part.title}: {error}"
        return [Problem(place.setting, None, text, "Copy the file again from where the model came from.")]
    return _check_numbers(place, pieces)


def _check_numbers(place: Place, pieces: Mapping[str, Piece]) -> list[Problem]:
    """Numbers in a format, or with factors in blocks, that can't be read."""
    header = header_of(place.path)
    tensors, unread = header.tensors, stored.unreadable(place.path, header)
    for piece in pieces.values():
        (kind, shape), factor = tensors[piece.source], tensors.get(piece.scale or "")
        unscaled = factor is None and kind in {"U8", "I8"} and piece.source.endswith(".weight")
        blocks = factor is not None and math.prod(factor[1]) not in {1, shape[0] if shape else 1}
        form = unread.get(piece.source.removesuffix(".weight"))
        foreign = factor is not None and factor[0] not in headers.FLOATS
        if kind not in headers.FORMATS or unscaled or blocks or foreign or form:
            named = form or (f"{kind} with a factor for every {'block' if blocks else 'tensor'}" if factor else kind)
            text = f"{place.path.name} contains numbers that can't be read: {piece.source} is {named}"
            return [Problem(place.setting, None, text, "Use the model in bf16, fp16 or fp8 (scaled or not).")]
    return []


def _not_this(path: Path, part: Part, setting: str) -> Problem:
    kind = _kind(path)
    if not part.layouts:
        known = f" ({kind.title})" if kind else ""
        text = f"{path.name} is a single file{known}, but {part.title} is read from a folder"
    else:
        text = f"{path.name} is {kind.title if kind else 'of an unknown kind'}, not {part.title}"
        if kind is not None and kind.title.partition(" ")[2] == part.title.partition(" ")[2]:
            text = f"{path.name} is {kind.title}, but not whole or under other names{_lacks(path, part)}"
    remedy = f"Choose {_source_of(part)}."
    if kind is not None and kind.title.startswith("a Lo"):
        remedy += " To continue from a LoRA, set it as network_weights."
    return Problem(setting, None, text, remedy)


def _lacks(path: Path, part: Part) -> str:
    """The first name that the layout lacks of which the file has the most."""
    names = header_of(path).names
    lacking = [
        [prefix + name for name in layout.markers if prefix + name not in names]
        for layout in part.layouts
        for prefix in layout.prefixes
    ]
    fewest = min(lacking, key=len)
    return f": it lacks {fewest[0]}" if fewest else ""


def _missing(base: BaseModelFiles, part: Part) -> list[Problem]:
    """A part that nothing gives: fine where its config is all there is to it, and shipped, or the model needs none."""
    if part.optional or (not part.weights and part.shipped):
        return []
    if not part.setting:
        # the denoiser; what the base model's file holds instead has been said
        return []
    text = f"{part.title} is missing: {base.path.name if base.path else 'the base model'} does not contain it"
    return [Problem(f"model.{part.setting}", None, text, f"Set {part.setting} to {_source_of(part)}.")]


def _source_of(part: Part) -> str:
    return part.where or (f"the file or folder of {part.title}" if part.layouts else _folder_of(part))


def _folder_of(part: Part) -> str:
    return part.where or f"the folder {part.folder} of the model"


def _kind(path: Path) -> kinds.Kind | None:
    try:
        return kinds.which({name: shape for name, (_, shape) in header_of(path).tensors.items()})
    except (ValueError, OSError):
        return None


def _check_unused(base: BaseModelFiles, facts: ModelFacts) -> list[Problem]:
    """Settings that give a part which the family does not have."""
    known = {part.setting for part in facts.parts}
    return [
        Problem(
            f"model.{name}",
            None,
            f"{facts.title} does not use {name}",
            "Leave it empty, or choose the family of the file.",
        )
        for name in PLACES
        if name in base.given and name not in known
    ]


def _index_of(base: Path) -> Path | None:
    """What says which parts the folder has; diffusers' modular pipelines have a file of another name."""
    return next(
        (base / name for name in ("model_index.json", "modular_model_index.json") if (base / name).is_file()), None
    )


def _check_index(base: Path, facts: ModelFacts, pipelines: Iterable[str], families: Families) -> list[Problem]:
    """model_index.json against the family: its pipeline, and the class of each part."""
    index = _index_of(base)
    if index is None:
        hint = "a part alone" if (base / "config.json").is_file() else "no model_index.json in it"
        text = f"{base} is not a model in diffusers layout ({hint})"
        folders = ", ".join(part.folder for part in facts.parts[:3])
        remedy = f"Choose the folder that holds model_index.json, {folders}, ..."
        inside = min((path.name for path in base.glob("*.safetensors")), default=None)
        remedy += f", or a file in it, such as {inside}." if inside else ""
        return [Problem(headers.SETTING, None, text, remedy)]
    try:
        data = headers.read_json(index)
    except ValueError as error:
        return [Problem(headers.SETTING, None, f"{index.name} {error}", "Copy the file again.")]
    pipeline = data.get("_class_name")
    problems = []
    if pipeline not in {facts.pipeline_class, *pipelines}:
        text = f"{index.name} names {pipeline or 'nothing'}, but this family needs {facts.pipeline_class}"
        family = families.get(str(pipeline)) or f"that {pipeline or 'the model'} belongs to"
        remedy = f"Choose a {facts.title} model, or the family {family}."
        problems.append(Problem(headers.SETTING, None, text, remedy))
    for part in facts.parts:
        entry = data.get(part.name)
        name = entry[1] if isinstance(entry, list) and len(entry) >= 2 else None
        if name is not None and name not in part.class_names:
            text = f"{index.name} names {name} as {part.name}, but {part.title} must be {part.class_names[0]}"
            remedy = "Use the model's own model_index.json and parts; this one mixes two models."
            problems.append(Problem(headers.SETTING, None, text, remedy))
    return problems
