"""Converts the trainer's values to JSON that a browser accepts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import PurePath


def dumps(value: object, indent: int | None = None) -> str:
    """JSON text of ``value``: UTF-8 kept, NaN and infinities as null (JSON has none), paths and the rest as text."""
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False, indent=indent)


def jsonable(value: object) -> object:
    """``value`` in JSON's own types; one-element tensors and arrays become their number through ``.item()``."""
    if value is None or isinstance(value, bool | int | str):
        # str() of a StrEnum member, int() of an IntEnum: json writes both as their plain value.
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(item) for item in value), key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item"):
        return jsonable(value.item())
    return str(value)
