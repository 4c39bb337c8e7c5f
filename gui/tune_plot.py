"""Draws what a tune measured as SVG: finish time against peak memory, with those that nothing beats in both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from backend.runs.eta import spoken
from gui import plots

_GIB = 2**30
_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 16, 46
_PLOT_W, _PLOT_H = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_TIMES = (2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 8 * 3600, 12 * 3600, 86400)
_NEAR = 15
"""Pixels within which two numbers would cover each other."""


def pareto_plot(rows: Sequence[Mapping[str, Any]], best: int | None) -> str:
    """A point a measured row, with its number; empty with fewer than two.

    rows: of `tuned_dict`: number, name, finish (seconds), peak (bytes), pareto. best: number of the one to take.
    """
    shown = [row for row in rows if row.get("finish") is not None and row.get("peak")]
    if len(shown) < 2:
        return ""
    x, ticks_x = _scale([row["finish"] for row in shown], _round_time)
    y, ticks_y = _scale([row["peak"] / _GIB for row in shown], _round_step)

    def place(row: Mapping[str, Any]) -> tuple[float, float]:
        return _LEFT + _PLOT_W * x(row["finish"]), _TOP + _PLOT_H * (1 - y(row["peak"] / _GIB))

    parts = _axes([(x(value), spoken(value)) for value in ticks_x], [(y(value), _memory(value)) for value in ticks_y])
    front = sorted((row for row in shown if row.get("pareto")), key=lambda row: row["finish"])
    if len(front) > 1:
        parts.append(f'<polyline class="line" points="{" ".join(_steps([place(row) for row in front]))}"/>')
    taken: list[tuple[float, float]] = []
    for row in sorted(shown, key=lambda row: (row["number"] != best, not row.get("pareto"), row["finish"])):
        parts += _point(row, place(row), row["number"] == best, taken)
    return plots.frame("Finish time and peak memory of the candidates", parts, _HEIGHT)


def _point(row: Mapping[str, Any], at: tuple[float, float], best: bool, taken: list[tuple[float, float]]) -> list[str]:
    """A point, and its number where that covers no other."""
    kind = "point best" if best else "point front" if row.get("pareto") else "point"
    title = f"{row['number']} {row['name']}: {spoken(row['finish'])}, {_memory(row['peak'] / _GIB)}"
    parts = [
        f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{6 if best else 5}">'
        f"<title>{escape(title)}</title></circle>"
    ]
    if all(math.dist(at, other) > _NEAR for other in taken):
        right = at[0] > _WIDTH - _RIGHT - 24
        x, anchor = (at[0] - 9, "end") if right else (at[0] + 9, "start")
        parts.append(
            f'<text class="value" x="{x:.1f}" y="{at[1] - 6:.1f}" text-anchor="{anchor}">{row["number"]}</text>'
        )
        taken.append(at)
    return parts


def _steps(points: Sequence[tuple[float, float]]) -> list[str]:
    """The border that the points make: to the right, then down."""
    corners = [points[0]]
    for point in points[1:]:
        corners += [(point[0], corners[-1][1]), point]
    return [f"{x:.1f},{y:.1f}" for x, y in corners]


def _scale(values: Sequence[float], rounded: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    """A function from a value to its place between 0 and 1, and round values for ticks."""
    low, high = min(values), max(values)
    room = max(high - low, 0.02 * high) * 0.12
    low, high = max(0.0, low - room), high + room
    step = rounded((high - low) / 5)
    first = math.ceil(low / step)
    ticks = [step * number for number in range(first, math.floor(high / step) + 1)]
    return (lambda value: (value - low) / (high - low)), ticks


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10 ..."""
    power = 10 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _round_time(least: float) -> float:
    """The next round number of seconds, minutes, hours or days."""
    if least <= 1:
        return _round_step(least)
    return next((step for step in _TIMES if step >= least), 86400 * _round_step(least / 86400))


def _memory(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{round(gigabytes * 1024)} MB"


def _axes(ticks_x: Sequence[tuple[float, str]], ticks_y: Sequence[tuple[float, str]]) -> list[str]:
    base = _TOP + _PLOT_H
    parts = []
    for place, text in ticks_y:
        y = _TOP + _PLOT_H * (1 - place)
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_LEFT + _PLOT_W}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for place, text in ticks_x:
        x = _LEFT + _PLOT_W * place
        anchor = "start" if place < 0.02 else "end" if place > 0.98 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{base + 15}" text-anchor="{anchor}">{escape(text)}</text>')
    middle = f'x="{_LEFT + _PLOT_W / 2}" y="{base + 38}"'
    parts.append(f'<text {middle} text-anchor="middle">finish time (peak memory upwards)</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _PLOT_W}" y1="{base}" y2="{base}"/>')
    return parts
