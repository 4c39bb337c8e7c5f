"""The concept that the base has never seen: the zorbl, a striped, dotted creature with three eyes and spiral horns."""

from __future__ import annotations

import math

import numpy as np

from .pen import INK, Box, Pen, Point

TEAL = (38, 178, 170)
MAGENTA = (204, 44, 132)
CREAM = (250, 232, 190)
GOLD = (236, 184, 60)
DOT = (232, 96, 40)


def _egg(x: float, y: float, rx: float, ry: float) -> list[Point]:
    ring = []
    for i in range(48):
        a = 2 * math.pi * i / 48
        narrow = 1 - 0.16 * max(0.0, -math.sin(a))
        ring.append((x + rx * narrow * math.cos(a), y + ry * math.sin(a)))
    return ring


def draw_zorbl(pen: Pen, box: Box, rng: np.random.Generator) -> None:
    """Draw a zorbl, its feet at the box's foot; it leans and looks one way or the other."""
    x, y, h = box.x, box.y, box.h
    facing = float(rng.choice([-1, 1]))
    body_y, rx, ry = y - h * 0.38, h * 0.36, h * 0.33
    tail = [
        (x - facing * (rx * 0.8 + h * 0.16 * t), y - h * 0.16 - h * 0.1 * math.sin(t * 5))
        for t in np.linspace(0, 1, 12)
    ]
    pen.tube(tail, h * 0.055, MAGENTA)
    pen.ellipse(*tail[-1], h * 0.05, h * 0.05, GOLD)
    for side in (-1, 1):
        _horn(pen, x + side * h * 0.17, body_y - ry * 0.8, h, side)
        for inner in (0.3, 0.75):
            fx = x + side * rx * inner
            pen.tube([(fx, y - h * 0.12), (fx, y - h * 0.04)], h * 0.07, TEAL)
            pen.ellipse(fx + facing * h * 0.02, y - h * 0.02, h * 0.075, h * 0.035, DOT)
    _body(pen, x, body_y, rx, ry, facing, float(rng.uniform(0, 6.28)))
    _belly(pen, x + facing * h * 0.03, body_y + ry * 0.42, h)
    for dx, r in ((-0.19, 0.072), (0.02, 0.09), (0.22, 0.072)):
        cx, cy = x + facing * dx * h, body_y - ry * (0.42 if r > 0.08 else 0.3)
        pen.ellipse(cx, cy, r * h, r * h, (252, 252, 246))
        pen.ellipse(cx + facing * r * h * 0.25, cy, r * h * 0.45, r * h * 0.45, INK, ink=0)
    pen.line(
        [(x + facing * h * (0.02 + 0.02 * t), body_y + ry * (0.02 + 0.08 * math.sin(t * 0.63))) for t in range(-3, 6)],
        2,
    )


def _horn(pen: Pen, x: float, y: float, h: float, side: int) -> None:
    """A horn that rises and curls outwards in a spiral of one and a half turns."""
    cx, cy = x + side * h * 0.13, y - h * 0.12
    curl = []
    for t in np.linspace(0, 1, 44):
        angle = math.pi * (0.8 - 3.1 * t)
        r = h * (0.155 - 0.115 * t)
        curl.append((cx + side * r * math.cos(angle), cy - r * math.sin(angle)))
    pen.tube([(x - side * h * 0.01, y + h * 0.06), *curl], h * 0.038, GOLD, ink=1.4)


def _body(pen: Pen, x: float, y: float, rx: float, ry: float, facing: float, phase: float) -> None:
    ring = _egg(x, y, rx, ry)
    rows, cols = int(2 * ry * pen.scale) + 2, int(2 * rx * pen.scale) + 2
    yy, xx = np.mgrid[0:rows, 0:cols] / (2 * ry * pen.scale)
    bands = np.sin(6.28 * 4.2 * (yy * 0.8 + facing * xx * 0.55) + 0.9 * np.sin(8 * xx) + phase)
    pattern = np.where(bands[..., None] > 0, TEAL, MAGENTA).astype(np.uint8)
    pen.paste_pattern(pattern, ring, (x - rx, y - ry))
    pen.line([*ring, ring[0], ring[1]], 1.8)


def _belly(pen: Pen, x: float, y: float, h: float) -> None:
    pen.ellipse(x, y, h * 0.17, h * 0.13, CREAM, ink=1.2)
    for dx, dy in ((-0.09, -0.03), (0.0, -0.065), (0.09, -0.03), (-0.05, 0.045), (0.05, 0.045), (0.0, 0.0)):
        pen.ellipse(x + dx * h, y + dy * h, h * 0.024, h * 0.024, DOT, ink=0)
