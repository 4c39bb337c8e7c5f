"""Writes settings as TOML text, and into a file that can always be read back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import toml

from backend.base.files import write_atomic
from backend.config.schema import SCHEMA_VERSION, SECTIONS, Config, Section, by_path


class _Encoder(toml.TomlEncoder):  # type: ignore[misc]
    """The toml package's encoder with texts escaped as JSON: its own writes ``\\x`` so that nothing can read it."""

    def __init__(self) -> None:
        super().__init__(dict)
        self.dump_funcs[str] = _text
        self.dump_funcs[list] = self._list
        self.dump_funcs[float] = _float

    def _list(self, values: list[Any]) -> str:
        return "[" + ", ".join(str(self.dump_value(value)) for value in values) + "]"


def _text(value: str) -> str:
    # JSON leaves DEL as it is; TOML wants it escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _float(value: float) -> str:
    text = repr(value)
    # 1e-05 is valid TOML; 1e16 lacks the point that some readers want.
    return text if "." in text or "e-" in text else text.replace("e+", ".0e+")


def to_data(cfg: Config, whole: bool = False) -> dict[str, Any]:
    """The settings as plain tables in the order of the schema, with the schema version first.

    whole: every setting that has a value, for a run's own record; else only what differs from the defaults.
    """
    data: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for section in SECTIONS:
        values = _values(section, getattr(cfg, section), whole)
        if values:
            data[section] = values
    return data


def _values(section: str, part: Section, whole: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for name in type(part).model_fields:
        value = getattr(part, name)
        setting = by_path()[f"{section}.{name}"]
        if value is None or (not whole and value == setting.default):
            continue
        if setting.kind == "tables":
            # An empty list can't be written as rows; it is the default of every table that is not None.
            if value:
                rows[name] = [_row(row, whole) for row in value]
        elif setting.kind == "table":
            if value or whole:
                rows[name] = dict(value)
        else:
            values[name] = value
    return values | rows


def _row(row: Section, whole: bool) -> dict[str, Any]:
    fields = type(row).model_fields
    return {
        name: getattr(row, name)
        for name, info in fields.items()
        if getattr(row, name) is not None
        and (whole or info.is_required() or getattr(row, name) != info.get_default(call_default_factory=True))
    }


def dumps(cfg: Config, whole: bool = False) -> str:
    """TOML text of the settings, read back and compared. RuntimeError if it would not give the same values."""
    data = to_data(cfg, whole)
    text: str = toml.dumps(data, encoder=_Encoder())
    if tomllib.loads(text) != data:
        raise RuntimeError("the settings can't be written: their TOML does not read back as what was meant")
    return text


def dumps_value(value: Any) -> str:
    """One value as it stands behind the ``=``: a text in quotes, ``[1, 2]``, ``true``."""
    return str(_Encoder().dump_value(value))


def dump(cfg: Config, path: str | Path, whole: bool = False, comment: str = "") -> None:
    """Write the settings to a file, whole or not at all; an old file stays until the new one is safe.

    comment: first lines of the file, without the ``#``. Raises backend.base.errors.WriteFailed (DiskFull) in words.
    """
    header = "".join(f"# {line}\n" for line in comment.splitlines())
    write_atomic(path, header + dumps(cfg, whole))
