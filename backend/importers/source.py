"""Reads a settings file of any kind as one flat table of names, each with its line and its name in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backend.base.problems import Problem
from backend.config.file_kinds import TITLES, Kind, argument_kind, kind_of, plain_names
from backend.config.formats import Document, decode, read_document
from backend.importers import commands, easy, metadata
from backend.importers.notes import Note

KNOWN = (
    "Files of kohya_ss, sd-scripts (TOML or the command itself), musubi-tuner, LoRA Easy Training Scripts, OneTrainer, "
    "ai-toolkit, SimpleTuner and diffusion-pipe are read, and LoRA files that contain their settings"
)
_EMPTY = Problem(None, None, "the file contains no settings", "Choose another file")
_FLAT: tuple[Kind, ...] = ("onetrainer", "onetrainer-concepts", "ai-toolkit", "diffusion-pipe")
"""Kinds whose tables lie in each other, and which are read by paths."""
_SCRIPT_NAME = re.compile(r"^.*/|_train_network\.pyw?[\"']?$")
_SCRIPTS: dict[str, tuple[str, Any]] = {
    "sdxl": ("sdxl", True), "flux": ("network_module", "networks.lora_flux"),
    "flux_kontext": ("network_module", "networks.lora_flux"), "hv": ("network_module", "networks.lora"),
    "hv_1_5": ("network_module", "networks.lora_hv_1_5"), "fpack": ("network_module", "networks.lora_framepack"),
    **{name: ("network_module", f"networks.lora_{name}") for name in (
        "sd3", "anima", "lumina", "hunyuan_image", "qwen_image", "wan", "zimage", "flux_2", "krea2", "ideogram4",
        "hidream_o1",
    )},
    "kandinsky5": ("network_module", "networks.lora_kandinsky"),
}  # fmt: skip
"""What a training script tells of the family, by the beginning of its name."""
_WHOLE_SCRIPTS: dict[str, tuple[str, Any]] = {
    "sdxl": ("sdxl", True), "flux": ("flux1_checkbox", True), "sd3": ("sd3_checkbox", True),
    "anima": ("anima_checkbox", True),
}  # fmt: skip
"""The same of scripts that train whole models (``sdxl_train.py``), which take no network."""
_ONLY_MUSUBI = ("hv", "flux_kontext")
_MOST = 20_000
"""Settings of one file; the largest preset has a few hundred."""


@dataclass(frozen=True)
class Source:
    """A file that was read. values: names with values, sections of the file taken away. lines: from 1, by path.

    folder: where the file lies, for paths in it; None for a file that was sent. problems: why values is empty.
    names: what a name is called in the file, where it is not itself. read: what was said of parts of the file before
    any name was looked at. dataset: the data set that the same file holds. title: what the file is.
    """

    kind: Kind | None
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    folder: Path | None = None
    problems: tuple[Problem, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    read: tuple[Note, ...] = ()
    dataset: Source | None = None
    title: str = ""
    script: str = ""
    """The script that a command runs."""


def read(path: Path) -> Source:
    """Read a file; whatever is wrong with it is in `problems`, with its line."""
    return of_document(read_document(path), path.parent)


def read_raw(raw: bytes, folder: Path | None = None) -> Source:
    """The same for the bytes of a file."""
    return of_document(decode(raw), folder)


def of_document(document: Document, folder: Path | None = None) -> Source:
    """The same for a file that was decoded."""
    kind = kind_of(document)
    if document.problems or document.data is None:
        return Source(None, {}, folder=folder, problems=document.problems or (_EMPTY,))
    if kind is None:
        return _unknown(document)
    source = _of_kind(kind, document, folder)
    return source if source.title or source.kind is None else replace(source, title=TITLES[source.kind])


def _of_kind(kind: Kind, document: Document, folder: Path | None) -> Source:
    if document.form == "command":
        return _of_command(document.text, folder)
    if kind == "lora":
        values, names, notes = metadata.arguments_of(document.data)
        return Source(argument_kind(values), values, {}, folder, (), names, tuple(notes), title=TITLES["lora"])
    if kind == "easy-training":
        return _of_easy(document, folder)
    if kind == "kohya_ss":
        return _with_additional(Source(kind, document.data, document.lines, folder))
    if kind == "simpletuner":
        lines = plain_names(document.lines)
        return Source(kind, plain_names(document.data), lines, folder)
    if kind in ("sd-scripts", "musubi-tuner"):
        values, places = _sections(document.data, document.lines)
        return Source(kind, values, places, folder) if values else _refused(_EMPTY)
    if kind == "simpletuner-dataset":
        return Source(kind, {"": document.data}, document.lines, folder)
    if kind in _FLAT:
        flat = dict(_leaves(document.data, ""))
        if len(flat) > _MOST:
            return _refused(Problem(None, None, f"the file has more than {_MOST} settings", "Choose another file"))
        return Source(kind, flat, document.lines, folder)
    return Source(kind, document.data, document.lines, folder)


def _unknown(document: Document) -> Source:
    if document.form == "safetensors":
        text = "the file contains weights, but not how they were trained"
        return _refused(Problem(None, None, text, "Choose a LoRA file with ss_ metadata, or the settings themselves"))
    if document.data in ({}, [], ""):
        return _refused(_EMPTY)
    form = {"json": "JSON", "yaml": "YAML"}.get(document.form)
    text = "the file is text, but not settings of a program that Monotile knows"
    if form is not None:
        text = f"the file is {form}, but not settings of a program that Monotile knows"
    return _refused(Problem(None, None, text, KNOWN))


def _refused(problem: Problem) -> Source:
    return Source(None, {}, problems=(problem,))


def _sections(data: Mapping[str, Any], lines: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
    """Both programs ignore the names of sections, and take what is in them as one list of arguments."""
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    for key, value in data.items():
        inside = value.items() if isinstance(value, dict) else [(None, value)]
        for name, item in inside:
            flat = name or key
            values[flat] = item
            where = lines.get(f"{key}.{name}" if name else key)
            if where:
                places[flat] = where
    return values, places


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    """Every value that is no table, and no list of tables, by path (``config.process[0].train.lr``)."""
    if isinstance(value, Mapping) and (value or not path):
        return [row for key, each in value.items() for row in _leaves(each, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        return [row for place, each in enumerate(value) for row in _leaves(each, f"{path}[{place}]")]
    return [(path, value)]


def _of_command(text: str, folder: Path | None) -> Source:
    try:
        listed = commands.read_commands(text)
    except ValueError as error:
        remedy = "Close the quote, or write the command in one line"
        return _refused(Problem(None, None, f"this command can't be read: {error}", remedy))
    command = commands.training(listed)
    if command is None or not command.values:
        return _refused(Problem(None, None, "the script contains no command with arguments", KNOWN))
    names = {name: f"--{name}" for name in command.values}
    values = dict(command.values)
    script = _SCRIPT_NAME.sub("", command.script.replace("\\", "/"))
    whole = re.sub(r"_train\.pyw?[\"']?$", "", script)
    name, value = _WHOLE_SCRIPTS.get(whole) or _SCRIPTS.get(whole, ("", None))
    if whole == script:
        name, value = _SCRIPTS.get(script, ("", None))
    if name and name not in values:
        values[name], names[name] = value, command.script
    kind: Kind = "musubi-tuner" if script in _ONLY_MUSUBI else argument_kind(values)
    read = [Note(word, "not needed", "it is for accelerate, which Monotile does not use") for word in command.launcher]
    read += [
        Note(each.script or "a command", "not needed", "only the training command is read")
        for each in listed
        if each is not command
    ]
    for name, variables in command.unset.items():
        why = f"{', '.join(sorted(variables))} is not set in the file; set this value by hand"
        read.append(Note(names[name], "not offered", why, command.lines.get(name), None, str(values.pop(name))))
    source = Source(kind, values, command.lines, folder, (), names, tuple(read))
    source = replace(
        source,
        script=command.script,
        title="a command of musubi-tuner" if kind == "musubi-tuner" else "a command of sd-scripts",
    )
    return _with_config_file(source)


def _with_config_file(source: Source) -> Source:
    """A command with the values of the file that its --config_file names, which the command's own rule over."""
    name = source.values.get("config_file")
    if not isinstance(name, str) or source.folder is None:
        return source
    places = [Path(name), source.folder / name, source.folder / Path(name).name]
    path = next((place for place in places if place.is_file()), None)
    config = read(path) if path else Source(None, {})
    if config.kind not in ("sd-scripts", "musubi-tuner"):
        why = "that file can't be read as arguments; import it as well"
        if path is None:
            why = "that file does not exist; import it as well"
        note = Note("--config_file", "not offered", why, source.lines.get("config_file"))
        values = {key: value for key, value in source.values.items() if key != "config_file"}
        return replace(source, values=values, read=(*source.read, note))
    values = {**config.values, **source.values}
    return replace(source, kind=argument_kind(values), values=values)


def _with_additional(source: Source) -> Source:
    """A preset of kohya_ss with the further arguments that it hands to the trainer last, so that they rule."""
    text = source.values.get("additional_parameters")
    if not isinstance(text, str) or not text.strip():
        return source
    line = source.lines.get("additional_parameters")
    try:
        options = commands.arguments_of(text)
    except ValueError as error:
        note = Note("additional_parameters", "not offered", f"it can't be read: {error}", line, None, text)
        return replace(source, values=_without(source.values, "additional_parameters"), read=(note,))
    note = Note("additional_parameters", "taken", "see each of its settings", line, None, text)
    values = {**_without(source.values, "additional_parameters"), **options}
    over = [
        Note(name, "not needed", "additional_parameters rules", source.lines.get(name))
        for name in options
        if name in source.values
    ]
    names = {name: f"additional_parameters --{name}" for name in options}
    lines = {**source.lines, **dict.fromkeys(options, line or 0)}
    return replace(source, values=values, names=names, lines=lines, read=(note, *over))


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _of_easy(document: Document, folder: Path | None) -> Source:
    parts = easy.split(document.data)
    lines = {name: document.lines.get(path, 0) for name, path in parts.paths.items()}
    dataset = None
    if parts.dataset is not None:
        inner = {here: document.lines.get(there, 0) for here, there in parts.dataset_paths.items()}
        dataset = Source("dataset", parts.dataset, inner, folder, names=parts.dataset_paths)
    title = TITLES["easy-training"]
    return Source("sd-scripts", parts.values, lines, folder, (), parts.paths, tuple(parts.notes), dataset, title)
