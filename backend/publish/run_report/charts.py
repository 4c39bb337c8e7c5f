"""Draws lines over the steps of a run as SVG; the colours are classes of the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 40
_PLOT_W, _PLOT_H = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a chart. style: a class of the page's style. dots: each point is marked."""

    label: str
    style: str
    points: Points
    dots: bool = False


def line_chart(title: str, lines: Sequence[Line], from_zero: bool = False) -> str:
    """The lines over each other with axes and a legend; "" where none has a point."""
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    every = [point for line in lines for point in line.points]
    x_low, x_high = _bounds([x for x, _ in every])
    y_low, y_high = _bounds([y for _, y in every] + ([0.0] if from_zero else []))

    def x_of(value: float) -> float:
        return _LEFT + _PLOT_W * (value - x_low) / (x_high - x_low)

    def y_of(value: float) -> float:
        return _TOP + _PLOT_H * (1 - (value - y_low) / (y_high - y_low))

    body = _grid(ticks(y_low, y_high, 5), y_of) + _steps(ticks(x_low, x_high, 7), x_of)
    for line in lines:
        body += _drawn(line, x_of, y_of)
    name = escape(title)
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}"'
    legend = "".join(f'<span class="key {line.style}">{escape(line.label)}</span>' for line in lines)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {box}><title>{name}</title>{"".join(body)}</svg>'
    return f'<figure><figcaption>{name}<span class="legend">{legend}</span></figcaption>{svg}</figure>'


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers from low to high: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def _grid(values: Sequence[float], y_of: Callable[[float], float]) -> list[str]:
    parts = []
    for value in values:
        y = y_of(value)
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_LEFT + _PLOT_W}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    return parts


def _steps(values: Sequence[float], x_of: Callable[[float], float]) -> list[str]:
    base = _TOP + _PLOT_H
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _PLOT_W}" y1="{base}" y2="{base}"/>']
    for value in values:
        parts.append(f'<text x="{x_of(value):.1f}" y="{base + 16}" text-anchor="middle">{value:,.10g}</text>')
    parts.append(f'<text x="{_LEFT + _PLOT_W / 2}" y="{base + 33}" text-anchor="middle">step</text>')
    return parts


def _drawn(line: Line, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> list[str]:
    places = [(x_of(x), y_of(y)) for x, y in line.points]
    parts = []
    if len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="line {line.style}" points="{path}"/>')
    if line.dots or len(places) == 1:
        parts += [f'<circle class="dot {line.style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
    return parts
