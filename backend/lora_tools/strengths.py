"""Reads ``FILE:STRENGTH`` as it is typed."""

from __future__ import annotations

import math
from pathlib import Path

from backend.base.errors import Refused
from backend.base.paths import resolve


def read_choice(text: str) -> tuple[Path, float]:
    """The file and its strength, 1 where none is given. A colon of a drive's letter is no strength.

    Refused for a strength that is no finite number.
    """
    file, colon, number = text.rpartition(":")
    if not colon or not file or "/" in number or "\\" in number or Path(text).is_file():
        return resolve(text), 1.0
    try:
        strength = float(number)
    except ValueError:
        strength = math.nan
    if not math.isfinite(strength):
        raise Refused(f"{number!r} in --lora {text} is no strength", "Write FILE:0.8, or FILE alone.")
    return resolve(file), strength
