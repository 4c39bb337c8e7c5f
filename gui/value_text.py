"""Writes single values as the page shows them in text boxes."""

from __future__ import annotations

import json
from typing import Any

from backend.config.toml_io import dumps_value


def number_text(value: float) -> str:
    """A number as people write it: 0.0001 -> 1e-4, 16.0 -> 16, exact when read back."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    mantissa, _, exponent = f"{value:e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    plain = repr(value)
    return short if abs(value) < 0.001 and float(short) == value else plain


def toml_value(value: Any) -> str:
    """One value as TOML writes it, on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml_value(item)}" for name, item in value.items()) + " }"
    return dumps_value(value)
