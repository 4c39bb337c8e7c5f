"""Splits settings of LoRA Easy Training Scripts into arguments and a data set of sd-scripts, which it hands them to.

Each tab is a section ``[NAME_args]`` with ``args`` for the trainer and ``dataset_args`` for the data set; folders are
``[[subsets]]``. A value that is empty, false or 0 is not handed on there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.importers.notes import Note, shown

_TABLES = ("network_args", "optimizer_args", "lr_scheduler_args")
_NOT_HANDED_ON = "empty, false or 0, so that the other program ignores it"


@dataclass
class Split:
    """values: arguments by name. paths: each one's path in the file. dataset: as a data set file, or None; and the
    paths in the file of what is in it."""

    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    dataset: dict[str, Any] | None = None
    dataset_paths: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def split(data: Mapping[str, Any]) -> Split:
    """Take a file apart; every name of it is in one of the parts, or in a note."""
    out = Split()
    general: dict[str, Any] = {}
    for section, parts in data.items():
        if section == "subsets":
            continue
        for part, table in parts.items() if isinstance(parts, Mapping) else [("", parts)]:
            path = f"{section}.{part}" if part else section
            if part not in ("args", "dataset_args") or not isinstance(table, Mapping):
                if section in ("train_mode",) or not table:
                    out.notes.append(Note(path, "not needed", "it is for the other program's window"))
                else:
                    out.notes.append(
                        Note(path, "unknown", "Monotile does not know this part", None, None, shown(path, table))
                    )
                continue
            for name, value in table.items():
                _take(out, general, part, f"{path}.{name}", name, value)
    _fill(out, general, data.get("subsets"))
    if "algo" in str(out.values.get("network_args", "")):
        out.values.setdefault("network_module", "lycoris.kohya")
    return out


def _take(out: Split, general: dict[str, Any], part: str, path: str, name: str, value: Any) -> None:
    if not value or (part == "args" and name == "fa"):
        fate = "not offered" if value else "off"
        out.notes.append(Note(path, fate, "LoRA-FA networks are not supported" if value else _NOT_HANDED_ON))
    elif part == "args":
        out.values[name] = _written(value) if name in _TABLES else value
        out.paths[name] = path
    else:
        general[name] = value
        out.dataset_paths[f"general.{name}"] = path


def _written(value: Any) -> Any:
    """A table of arguments in the form that sd-scripts takes them in."""
    if not isinstance(value, Mapping):
        return value
    texts = {str(k): ",".join(map(str, v)) if isinstance(v, list) else v for k, v in value.items() if v != ""}
    bools = {"true": True, "false": False}
    return [f"{key}={bools.get(str(item).lower(), item)}" for key, item in texts.items()]


def _fill(out: Split, general: dict[str, Any], subsets: Any) -> None:
    rows = [row for row in subsets if isinstance(row, Mapping)] if isinstance(subsets, list) else []
    if not rows and not general:
        return
    kept: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        inner: dict[str, Any] = {}
        for name, value in row.items():
            path = f"subsets[{place}].{name}"
            if name == "name":
                out.notes.append(Note(path, "not needed", "folders have no name in Monotile", None, None, str(value)))
            elif not value:
                out.notes.append(Note(path, "off", _NOT_HANDED_ON))
            else:
                inner[name] = value
                out.dataset_paths[f"datasets[0].subsets[{place}].{name}"] = path
        out.dataset_paths[f"datasets[0].subsets[{place}]"] = f"subsets[{place}]"
        kept.append(inner)
    out.dataset = {"general": general, "datasets": [{"subsets": kept}] if kept else []}
