"""Reads a TOML file, a form or the command line into a checked config, with every problem at once."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backend.base.problems import Problem, errors
from backend.config.coerce import coerce
from backend.config.explain import explain, shown
from backend.config.file_kinds import TITLES, is_of_another, kind_of
from backend.config.formats import read_document
from backend.config.lines import key_lines, line_of
from backend.config.migrate import LEGACY, migrate
from backend.config.names import canonical, unknown_column, unknown_name, unknown_section
from backend.config.profiles import apply_profile
from backend.config.reading import Read, read_file, read_text
from backend.config.rules.check import check
from backend.config.schema import SECTIONS, Config, Setting, by_name, by_path

_FORMS = {"json": "JSON", "yaml": "YAML", "command": "a command", "safetensors": "a safetensors file of weights"}
_TEXT_KINDS = ("str", "text", "path", "choice")


@dataclass(frozen=True)
class Loaded:
    """A config and what is wrong with where it came from.

    config: None as soon as one problem is an error. partial: the config with defaults where a value could not be read,
    for a form to show beside the errors; None only when nothing could be parsed at all.
    """

    config: Config | None
    problems: list[Problem] = field(default_factory=list)
    partial: Config | None = None

    @property
    def errors(self) -> list[Problem]:
        """Only the problems that stop."""
        return errors(self.problems)


def load(path: str | Path, overrides: Mapping[str, str] | None = None) -> Loaded:
    """Read a settings file. Keys that it does not name have their default.

    path: a .toml file, UTF-8. overrides: values that rule over the file's, by flat name or ``section.name``, as texts
    from a command line: what parses as a TOML value is one, all else is text.
    """
    loaded = _parse_read(read_file(Path(path)), overrides)
    other = _other_program(Path(path)) if loaded.errors else None
    return loaded if other is None else Loaded(None, [other])


def _other_program(path: Path) -> Problem | None:
    """The one problem of a file that is none of ours: what it holds, and the command that brings it over."""
    document = read_document(path)
    kind = kind_of(document)
    command = f"python3 launcher.py import {shlex.quote(str(path))}"
    if kind is not None and is_of_another(document):
        text = f"{path.name} holds {TITLES[kind]}, which can be imported but not used as it is"
        return Problem(None, None, text, f"Import it first: {command} -o NEW.toml")
    if document.form != "toml":
        text = f"{path.name} is {_FORMS[document.form]}, and settings are TOML"
        return Problem(None, None, text, f"Choose a .toml file; files of other trainers are imported by {command}")
    return None


def loads(text: str, overrides: Mapping[str, str] | None = None) -> Loaded:
    """The same for TOML text."""
    return _parse_read(read_text(text), overrides)


def parse(data: Mapping[str, Any], text: str | None = None) -> Loaded:
    """Check settings given as tables by section, from a file or a form.

    data: ``{"dataset": {"batch_size": 2, ...}, ...}``; not changed. text: the TOML it came from, for line numbers.
    """
    return _Parse(dict(data), text).run()


def ready(cfg: Config) -> list[Problem]:
    """What a config still lacks before a run can start (a base model, pictures); a preset may lack them."""
    return check(cfg, "start")


def _parse_read(read: Read, overrides: Mapping[str, str] | None) -> Loaded:
    if read.data is None:
        return Loaded(None, read.problems)
    data, problems, overridden = _override(read.data, overrides or {})
    parsed = _Parse(data, read.text, overridden).run()
    ordered = parsed.problems
    if read.holes:
        # A line that could not be read may be the very one that is missed.
        ordered = [p for p in ordered if not p.text.endswith("is missing")]
    ordered = _in_order([*read.problems, *problems, *ordered])
    return Loaded(None if errors(ordered) else parsed.config, ordered, parsed.partial)


def _override(data: dict[str, Any], overrides: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem], set[str]]:
    """The data with the overrides in it, problems with their names, and the paths that they set."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    problems: list[Problem] = []
    done: set[str] = set()
    for option, text in overrides.items():
        name = canonical(option)
        setting = by_path().get(name) or by_name().get(name)
        if name in LEGACY and isinstance(data.setdefault("compile", {}), dict):
            data["compile"][name] = _toml_or_text(text)
            continue
        if setting is None:
            _, remedy = unknown_name(option.split(".")[-1])
            problems.append(Problem(None, None, f"there is no setting --{option.lstrip('-')}", remedy))
            continue
        section = data.setdefault(setting.section, {})
        if isinstance(section, dict):
            section[setting.name] = _override_value(setting, text)
            done.add(setting.path)
    return data, problems, done


def _override_value(setting: Setting, text: str) -> Any:
    """A command-line text as a value: TOML where it is TOML, except that a text needs no quotes."""
    if setting.nullable and text.strip().lower() in ("", "none"):
        return None
    value = _toml_or_text(text)
    return text if setting.kind in _TEXT_KINDS and not isinstance(value, str) else value


def _toml_or_text(text: str) -> Any:
    try:
        data = tomllib.loads(f"value = {text}\n")
    except (ValueError, RecursionError):
        return text
    # A text with line ends could bring further keys with it.
    return data["value"] if len(data) == 1 else text


class _Parse:
    """One pass over one file's data; collects problems as it goes."""

    def __init__(self, data: dict[str, Any], text: str | None, overridden: set[str] | None = None) -> None:
        self.data = data
        self.text = text
        self.overridden = overridden or set()
        self.problems: list[Problem] = []
        self.failed: set[str] = set()
        self.moved: dict[str, str] = {}

    def run(self) -> Loaded:
        data, self.problems, self.moved = migrate(self.data)
        values = {section: self._section(section, data.get(section)) for section in SECTIONS}
        for key, value in data.items():
            if key not in SECTIONS:
                self._unknown(key, value)
        partial = self._validate(values)
        self.problems += apply_profile(partial, self._names_set(values["compile"]))
        self.problems += check(partial, without=self.failed)
        problems = _in_order(self._with_lines())
        return Loaded(None if errors(problems) else partial, problems, partial)

    def _section(self, section: str, table: Any) -> dict[str, Any]:
        """The known settings of one section, coerced; what is unknown becomes a problem."""
        if table is None:
            return {}
        if not isinstance(table, Mapping):
            text = f"[{section}] is a section of settings, not {shown(table)}"
            self.problems.append(Problem(section, None, text, f"Write its settings below a line [{section}]"))
            return {}
        values: dict[str, Any] = {}
        for key, value in table.items():
            setting = by_path().get(f"{section}.{key}")
            if setting is None:
                self.problems.append(Problem(f"{section}.{key}", None, *unknown_name(key, section)))
            else:
                values[key] = self._known(setting, coerce(setting, value))
        return values

    def _known(self, setting: Setting, value: Any) -> Any:
        """The value without columns that a row does not have; each of these is a problem."""
        if setting.kind != "tables" or not isinstance(value, list):
            return value
        names = {column.name for column in setting.columns}
        rows: list[Any] = []
        for index, row in enumerate(value):
            if not isinstance(row, dict):
                rows.append(row)
                continue
            for key in row:
                if key not in names:
                    path = f"{setting.path}[{index}].{key}"
                    self.problems.append(Problem(path, None, *unknown_column(key, setting)))
            rows.append({key: item for key, item in row.items() if key in names})
        return rows

    def _unknown(self, key: str, value: Any) -> None:
        words = unknown_section(key) if isinstance(value, dict) else unknown_name(key)
        self.problems.append(Problem(key, None, *words))

    def _validate(self, values: dict[str, dict[str, Any]]) -> Config:
        """The config with defaults where a value is refused; each refusal becomes a problem."""
        try:
            return Config.model_validate(values)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                self._refused(fault)
        for path in self.failed:
            section, name = path.split(".")
            values[section].pop(name, None)
        return Config.model_validate(values)

    def _names_set(self, values: dict[str, Any]) -> set[str]:
        """Names that somebody chose: in a form, which always gives every value, those that are not the default."""
        names = {name for name in values if f"compile.{name}" not in self.failed}
        if self.text is not None:
            return names
        return {name for name in names if values[name] != by_path()[f"compile.{name}"].default}

    def _refused(self, fault: Any) -> None:
        section, name, *inner = fault["loc"]
        setting = by_path()[f"{section}.{name}"]
        self.failed.add(setting.path)
        path, declared = setting.path, setting
        for part in inner:
            if isinstance(part, int):
                path += f"[{part}]"
            elif setting.columns:
                path += f".{part}"
                declared = next(column for column in setting.columns if column.name == part)
        self.problems.append(Problem(path, None, *explain(declared, fault)))

    def _with_lines(self) -> list[Problem]:
        """The problems with the lines of their keys; the file is searched only when there are any."""
        if self.text is None or not self.problems:
            return self.problems
        lines = key_lines(self.text)
        return [p if p.line or p.path is None else replace(p, line=self._line(lines, p)) for p in self.problems]

    def _line(self, lines: dict[str, int], problem: Problem) -> int | None:
        assert problem.path is not None
        if problem.setting in self.overridden:
            return None
        path = problem.path
        return line_of(lines, self.moved.get(path, path))


def _in_order(problems: list[Problem]) -> list[Problem]:
    """Errors before warnings, then by line, then as found; the same one once."""
    once = list(dict.fromkeys(problems))
    return sorted(once, key=lambda p: (p.severity != "error", p.line is None, p.line or 0))
