"""Reads the nested settings of a program by their paths, as its tables describe them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.config.schema import by_path
from backend.config.sections.optimizer import OPTIMIZERS
from backend.families.table import lacking
from backend.importers.common_reasons import UNKNOWN
from backend.importers.names import read_value
from backend.importers.notes import Fate, Note, shown
from backend.importers.values import is_off, number
from backend.importers.work import Work

_INDEX = re.compile(r"\[\d+\]")


class Fields:
    """The values of a file by path, and which of them have been read. A path is asked for without places in lists."""

    def __init__(self, work: Work, start: str = "") -> None:
        self.work, self.start = work, start
        self.read: set[str] = set()
        self._keys: dict[str, list[str]] = {}
        for key in work.values:
            self._keys.setdefault(self.bare(key), []).append(key)

    def bare(self, key: str) -> str:
        """The path as tables have it: without places in lists and what all paths begin with."""
        return _INDEX.sub("[]", key).removeprefix(self.start)

    def has(self, path: str) -> bool:
        """Whether the file has this path."""
        return path in self._keys

    def get(self, path: str, default: Any = None) -> Any:
        """The first value of this path."""
        return self.work.values[self._keys[path][0]] if path in self._keys else default

    def on(self, path: str) -> bool:
        """Whether it has a value that is more than off."""
        return not is_off(self.get(path))

    def first(self, *paths: str) -> str:
        """The first of these paths that has a value that is more than off; empty where none has."""
        return next((path for path in paths if self.on(path)), "")

    def note(self, path: str, fate: Fate, why: str = "", goal: str | None = None) -> None:
        """Say what became of all values of a path; nothing where it has none."""
        for key in self._keys.get(path, []):
            if key not in self.read:
                self.work.note(
                    key, "off" if fate == "not offered" and is_off(self.work.values[key]) else fate, why, goal
                )
            self.read.add(key)

    def take(self, path: str, goal: str, value: Any, near: str = "") -> None:
        """Have `goal` hold a value that comes from `path`, and say so."""
        key = self._keys.get(path, [path])[0]
        self.work.take(goal, value, key)
        self.note(path, "near" if near else "taken", near, goal)

    def rows(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each table of a list by its place (``concepts[0]``), with its values by the path below."""
        rows: dict[str, dict[str, Any]] = {}
        begin = re.compile(re.escape(self.start).replace(r"\[\]", r"\[\d+\]") + re.escape(path) + r"\[\d+\]")
        for key, value in self.work.values.items():
            match = begin.match(key)
            if match:
                rows.setdefault(match.group(), {})[key[match.end() + 1 :]] = value
        yield from rows.items()


@dataclass(frozen=True)
class Program:
    """How the settings of one program are read."""

    keys: Mapping[str, tuple[str, str]]
    """Path -> the setting here and the reader of its value."""
    not_needed: Mapping[str, str]
    """Path -> why nothing is lost without it; a path that ends in a dot means all below it."""
    not_offered: Mapping[str, str]
    """Path -> why it is not supported; written in the same way."""
    combined: Callable[[Fields], None]
    """Reads what needs more than one path."""
    neutral: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Path -> values that mean no more than the program's default."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Setting -> the program's default, where it differs from ours."""
    start: str = ""
    """What all paths begin with."""

    def left(self, work: Work, key: str, path: str, value: Any) -> None:
        """Read one path by itself, or say why it is left."""
        _one(work, self, key, path, value)


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Path -> reason, of paths that are written behind each reason, with blanks between."""
    return {path: reason for reason, paths in names.items() for path in paths.split()}


def read_program(work: Work, program: Program, title: str) -> None:
    """Take over everything that the file says, and what the program takes where it says nothing."""
    fields = Fields(work, program.start)
    program.combined(fields)
    for key, value in work.values.items():
        if key not in fields.read:
            _one(work, program, key, fields.bare(key), value)
    for goal, value in program.defaults.items():
        length = goal == "training.max_train_steps" and "training.max_train_epochs" in work.ours
        if goal not in work.ours and not length and goal.partition(".")[2] not in lacking(work.family_here):
            work.take(goal, value, goal)
            why = f"not in the file: {shown(goal, value)} is what {title} uses"
            work.notes.append(Note(goal.partition(".")[2], "default", why, None, goal))


def _one(work: Work, program: Program, key: str, path: str, value: Any) -> None:
    needed, offered = _reason(program.not_needed, path), _reason(program.not_offered, path)
    off = is_off(value) or str(value).strip() in program.neutral.get(path, ())
    if path in program.keys:
        goal, reader = program.keys[path]
        if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none")):
            work.note(key, "off", "empty")
        else:
            read_value(work, key, goal, reader, value, work.note)
    elif needed:
        work.note(key, "not needed", needed)
    elif offered:
        work.note(key, "off" if off else "not offered", offered)
    else:
        work.note(key, "off" if off else "unknown", UNKNOWN)


def _reason(reasons: Mapping[str, str], path: str) -> str:
    if path in reasons:
        return reasons[path]
    parts = path.split(".")
    starts = (".".join(parts[:count]) + "." for count in range(len(parts) - 1, 0, -1))
    return next((reasons[start] for start in starts if start in reasons), "")


_OPTIMIZER, _ARGS = "optimizer.optimizer", "optimizer.optimizer_args"
_OWN = {"weight_decay": "optimizer.weight_decay", "betas": "optimizer.betas", "eps": "optimizer.eps"}
_ARGUMENTS: dict[str, dict[str, str]] = {
    "prodigy": {
        "d_coef": "d_coef", "d0": "d0", "growth_rate": "growth_rate", "beta3": "beta3", "decouple": "weight_decouple",
        "safeguard_warmup": "safeguard_warmup", "use_bias_correction": "bias_correction",
    },
    "adamw": {"amsgrad": "amsgrad"},
    "sgd": {"momentum": "momentum", "dampening": "dampening", "nesterov": "nesterov"},
    "transformers.optimization.Adafactor": {
        "clip_threshold": "clip_threshold", "decay_rate": "decay_rate", "relative_step": "relative_step",
        "scale_parameter": "scale_parameter", "warmup_init": "warmup_init", "beta1": "beta1",
    },
}  # fmt: skip
"""Arguments that the classes have here: their name there -> here."""


def take_optimizer(fields: Fields, path: str, names: Mapping[str, tuple[str, str]], below: str = "") -> str:
    """Take over the optimizer that `path` names, and its arguments, which lie below `below`. Gives its name here.

    names: their name, in small letters -> ours, and a word where it is not the same.
    """
    optimizer = str(fields.get(path) or "").strip()
    if not optimizer:
        return ""
    plain = re.sub(r"[\s_-]", "", optimizer).lower()
    ours, near = names.get(optimizer.lower(), ("", ""))
    ours = ours or next((name for name in OPTIMIZERS if name.replace("_", "") == plain), "")
    if not ours:
        fields.note(path, "not offered", f"Monotile has no optimizer {optimizer}; adamw is used")
        return ""
    fields.take(path, _OPTIMIZER, ours, near)
    if below:
        _arguments(fields, ours, below)
    return ours


def _arguments(fields: Fields, name: str, below: str) -> None:
    work = fields.work
    betas = [number(fields.get(f"{below}{beta}")) for beta in ("beta1", "beta2")]
    hugging = "Adafactor" in name
    if not hugging and all(isinstance(each, int | float) for each in betas):
        work.take(_OWN["betas"], betas, f"{below}beta1")
        for beta in ("beta1", "beta2"):
            fields.note(f"{below}{beta}", "taken", "", _OWN["betas"])
    arguments: dict[str, Any] = {}
    for theirs, goal in _OWN.items():
        value = fields.get(f"{below}{theirs}")
        if value is not None and not (hugging and theirs != "weight_decay"):
            fields.take(f"{below}{theirs}", goal, number(value))
    for theirs, here in _ARGUMENTS.get(name, {}).items():
        value = fields.get(f"{below}{theirs}")
        if value is not None:
            arguments[here] = number(value)
            fields.note(f"{below}{theirs}", "taken", "", _ARGS)
    if arguments:
        work.take(_ARGS, arguments, below)


def take_every(fields: Fields, count: str, unit: str, steps: str, epochs: str, switch: str = "") -> None:
    """How often something is done: a number, and in what it counts."""
    off = switch and not fields.on(switch)
    interval = str(fields.get(unit) or "").upper()
    goal = {"STEP": steps, "EPOCH": epochs}.get(interval)
    value = number(fields.get(count))
    if off or interval in ("", "NEVER") or is_off(value):
        fields.note(count, "off", "the other program never does it")
        fields.note(unit, "off", "the other program never does it")
    elif goal is None:
        fields.note(count, "not offered", f"the interval is in {interval.lower()}s; Monotile has steps or epochs")
        fields.note(unit, "not offered", "Monotile has steps and epochs")
    else:
        fields.take(count, goal, value)
        fields.note(unit, "taken", "", goal)
    if switch:
        fields.note(switch, "off" if off else "taken")


def take_known(work: Work, goal: str, value: Any, key: str) -> None:
    """Have `goal` hold a value where the family has such a setting."""
    if goal in by_path() and goal.partition(".")[2] not in lacking(work.family_here):
        work.take(goal, value, key)
