"""Writes Markdown tables of text and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def shown(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A number as a cell; "-" for none."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    table = ["| " + " | ".join(header) + " |", "|" + "|".join([" --- ", *[" ---: "] * (len(header) - 1)]) + "|"]
    return "\n".join([*table, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"
