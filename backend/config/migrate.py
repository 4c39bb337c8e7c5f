"""Migrates older files: schema versions, and the compile keys of older trainers. Each change is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from backend.base.problems import Problem
from backend.config.family_defaults import usual_shape_mode
from backend.config.profiles import PROFILES
from backend.config.schema import SCHEMA_VERSION
from backend.config.sections.model import ModelSection
from backend.config.toml_io import dumps_value
from backend.families.table import FAMILIES

Data = dict[str, Any]


# From the version a file was written in to the next one. When a default changes, SCHEMA_VERSION goes up and a function
# here writes the old default into the file's data where it says nothing, so that an old file trains as it did.
def _static_was_the_default(data: Data) -> None:
    """Version 1 had no auto: shape_mode was static. Families that can't have it could not train without another."""
    model, section = data.get("model", {}), data.setdefault("compile", {})
    name = model.get("family", ModelSection.model_fields["family"].default) if isinstance(model, dict) else None
    if isinstance(section, dict) and (name not in FAMILIES or usual_shape_mode(name) == "static"):
        section.setdefault("shape_mode", "static")


MIGRATIONS: dict[int, Callable[[Data], None]] = {1: _static_was_the_default}

_PROFILE_OPTIONS = tuple(next(iter(PROFILES.values())))

_OFF = ("no", "off", "none", "false", "")
# The limit that musubi-tuner set for compile_args before the option existed (its commits c90b445 and 830600a).
_LIMIT_OF_COMPILE_ARGS = 32


class Migrated(NamedTuple):
    """data: in today's names. problems: what was moved (warnings) or can't be read (errors). moved: new path -> old."""

    data: Data
    problems: list[Problem]
    moved: dict[str, str]


def migrate(
    data: Data, version: int = SCHEMA_VERSION, steps: dict[int, Callable[[Data], None]] | None = None
) -> Migrated:
    """Bring a file's data to today's schema, without changing the argument.

    version, steps: today's version and the migrations, as parameters for tests.
    """
    data = copy.deepcopy(data)
    problems: list[Problem] = []
    written = data.pop("schema_version", None)
    if written is not None:
        problems += _to_version(data, written, version, MIGRATIONS if steps is None else steps)
    else:
        problems += _zero_limit(data)
    problems += _retired_profile(data)
    moved = _LegacyCompile(data, problems).move()
    return Migrated(data, problems, moved)


def _to_version(data: Data, written: Any, version: int, steps: dict[int, Callable[[Data], None]]) -> list[Problem]:
    if isinstance(written, bool) or not isinstance(written, int) or written < 1:
        text = f"schema_version must be a whole number from 1 to {version}"
        return [Problem("schema_version", None, text, "Remove the line if you wrote the file yourself")]
    if written > version:
        text = f"the file was written by a newer Monotile (schema {written}; this one knows {version})"
        return [Problem("schema_version", None, text, "Update Monotile, or set the values again here")]
    for number in range(written, version):
        if number in steps:
            steps[number](data)
    return []


def _zero_limit(data: Data) -> list[Problem]:
    """In a file that Monotile did not write, a limit of 0 means unset, as in the trainers it may come from."""
    section = data.get("compile")
    if not isinstance(section, dict) or str(section.get("compile_cache_size_limit")).strip() != "0":
        return []
    del section["compile_cache_size_limit"]
    text = "a compile_cache_size_limit of 0 was read as empty: the plan sets it"
    return [Problem("compile.compile_cache_size_limit", None, text, "Remove the line", "warning")]


def _retired_profile(data: Data) -> list[Problem]:
    """The profile fast_compile set what the defaults are; it ruled over the options, which therefore go with it."""
    section = data.get("compile")
    if not isinstance(section, dict) or str(section.get("compile_profile")).strip().lower() != "fast_compile":
        return []
    for name in ("compile_profile", *(name for name in _PROFILE_OPTIONS if name != "compile")):
        section.pop(name, None)
    text = "the profile fast_compile no longer exists: it was read as custom, with the defaults of the compile options"
    return [Problem("compile.compile_profile", None, text, "Remove the line", "warning")]


def is_true(value: Any) -> bool:
    """Only "true" is true, in any letter case: not "t", not "1", not the empty text."""
    return str(value).strip().lower() == "true"


def _tri_state(value: Any) -> str:
    word = str(value).strip().lower()
    return word if word in ("true", "false") else "auto"


def _words(value: Any) -> list[str] | None:
    """The four parts of compile_args, written as a list or as one text."""
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    return [str(part) for part in parts] if isinstance(parts, list | tuple) and len(parts) == 4 else None


class _LegacyCompile:
    """Moves ``compile_args``, ``dynamo_*`` and ``torch_compile*`` to the options of [compile]."""

    def __init__(self, data: Data, problems: list[Problem]) -> None:
        self.data = data
        self.problems = problems
        section = data.get("compile")
        self.section: Data = section if isinstance(section, dict) else {}
        self.given = set(self.section)
        self.moved: dict[str, str] = {}

    def move(self) -> dict[str, str]:
        """Move every legacy key; today's names, where given, rule over them."""
        for where, table in (("compile.", self.section), ("", self.data)):
            for old in [key for key in table if key in LEGACY]:
                value = table.pop(old)
                new = LEGACY[old](value)
                if new is None:
                    text = f"{old} can't be read"
                    remedy = "Write compile_backend, compile_mode, compile_dynamic and compile_fullgraph"
                    self.problems.append(Problem(where + old, None, text, remedy))
                    continue
                self._take(where + old, old, new)
        if self.moved:
            self.data["compile"] = self.section
        return self.moved

    def _take(self, path: str, old: str, new: Data) -> None:
        taken = {name: value for name, value in new.items() if name not in self.given}
        for name, value in taken.items():
            self.section[name] = value
            self.moved[f"compile.{name}"] = path
        values = ", ".join(f"{name} = {dumps_value(value)}" for name, value in taken.items() if value is not None)
        if values:
            text, remedy = f"{old} is an older name and was read as {values}", "Use the new name from now on"
        elif taken:
            text, remedy = f"{old} is an older name; it leaves {', '.join(taken)} empty", "Remove the line"
        else:
            text = f"{old} is an older name"
            remedy = "It has no effect together with today's options; remove the line"
        self.problems.append(Problem(path, None, text, remedy, "warning"))


def _compile_args(value: Any) -> Data | None:
    words = _words(value)
    if words is None:
        return None
    backend, mode, dynamic, fullgraph = words
    return {
        "compile_backend": backend.lower(),
        "compile_mode": mode.lower(),
        "compile_dynamic": _tri_state(dynamic),
        "compile_fullgraph": is_true(fullgraph),
        "compile_cache_size_limit": _LIMIT_OF_COMPILE_ARGS,
    }


def _backend(value: Any) -> Data | None:
    if not isinstance(value, str | bool):
        return None
    word = str(value).strip().lower()
    return {"compile": False} if word in _OFF else {"compile": True, "compile_backend": word}


def _limit(value: Any) -> Data:
    # In the older files 0 stood for "not set".
    return {"compile_cache_size_limit": None if str(value).strip() in ("0", "") else value}


LEGACY: dict[str, Callable[[Any], Data | None]] = {
    "compile_args": _compile_args,
    "dynamo_backend": _backend,
    "dynamo_mode": lambda value: {"compile_mode": str(value).strip().lower()},
    "dynamo_use_dynamic": lambda value: {"compile_dynamic": _tri_state(value)},
    "dynamo_use_fullgraph": lambda value: {"compile_fullgraph": is_true(value)},
    "dynamo_cache_size_limit": _limit,
    "torch_compile": lambda value: {"compile": is_true(value)},
    "torch_compile_backend": _backend,
    "torch_compile_mode": lambda value: {"compile_mode": str(value).strip().lower()},
    "torch_compile_dynamic": lambda value: {"compile_dynamic": _tri_state(value)},
    "torch_compile_fullgraph": lambda value: {"compile_fullgraph": is_true(value)},
    "torch_compile_cache_size_limit": _limit,
}
