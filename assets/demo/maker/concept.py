"""The concept that the base has never seen: the zorbl, a striped creature with a dotted belly and curled horns."""

from __future__ import annotations

import math

import numpy as np

from .pen import INK, Box, Pen, Point

TEAL = (30, 182, 172)
MAGENTA = (208, 40, 132)
CREAM = (250, 232, 190)
GOLD = (240, 184, 52)
DOT = (236, 96, 36)
WHITE = (252, 252, 246)
PALETTE = (TEAL, MAGENTA, CREAM, GOLD, DOT, WHITE, INK)


def _egg(x: float, y: float, rx: float, ry: float) -> list[Point]:
    ring = []
    for i in range(48):
        a = 2 * math.pi * i / 48
        narrow = 1 - 0.14 * max(0.0, -math.sin(a))
        ring.append((x + rx * narrow * math.cos(a), y + ry * math.sin(a)))
    return ring


def draw_zorbl(pen: Pen, box: Box, rng: np.random.Generator) -> None:
    """Draw a zorbl, its feet at the box's foot; it looks one way or the other, and its stripes slant as it looks."""
    x, y, h = box.x, box.y, box.h
    facing = float(rng.choice([-1, 1]))
    body_y, rx, ry = y - h * 0.38, h * 0.41, h * 0.33
    for side in (-1, 1):
        curl_horn(pen, x + side * h * 0.17, body_y - ry * 0.8, h, side)
        pen.rectangle(x + side * h * 0.2 - h * 0.07, y - h * 0.2, x + side * h * 0.2 + h * 0.07, y - h * 0.05, TEAL)
        pen.ellipse(x + side * h * 0.2 + facing * h * 0.03, y - h * 0.05, h * 0.13, h * 0.055, DOT)
    ring = _egg(x, body_y, rx, ry)
    pen.paste_pattern(stripes(pen, rx, ry, facing, float(rng.uniform(0, 1.5))), ring, (x - rx, body_y - ry))
    pen.line([*ring, ring[0], ring[1]], pen.ink)
    cx, cy = x + facing * h * 0.03, body_y + ry * 0.5
    pen.ellipse(cx, cy, h * 0.21, h * 0.135, CREAM)
    for dx, dy in ((-0.1, 0.0), (0.1, 0.0), (0.0, -0.06), (0.0, 0.07)):
        pen.ellipse(cx + dx * h, cy + dy * h, h * 0.037, h * 0.037, DOT, outlined=False)
    for dx, dy, r in ((-0.21, 0.26, 0.085), (0.21, 0.26, 0.085), (0.0, 0.42, 0.105)):
        ex, ey = x + dx * h + facing * h * 0.02, body_y - ry * dy
        pen.ellipse(ex, ey, r * h, r * h, WHITE)
        pen.ellipse(ex + facing * r * h * 0.25, ey, r * h * 0.5, r * h * 0.5, INK, outlined=False)


def curl_horn(pen: Pen, x: float, y: float, h: float, side: int) -> None:
    """A thick golden horn that rises and curls outwards."""
    cx, cy = x + side * h * 0.14, y - h * 0.12
    curl = []
    for t in np.linspace(0, 1, 40):
        angle = math.pi * (0.9 - 2.1 * float(t))
        r = h * (0.15 - 0.09 * float(t))
        curl.append((cx + side * r * math.cos(angle), cy - r * math.sin(angle)))
    pen.tube([(x - side * h * 0.01, y + h * 0.08), *curl], h * 0.065, GOLD)


def stripes(pen: Pen, rx: float, ry: float, facing: float, phase: float) -> np.ndarray:
    """Slanting wavy stripes of teal and magenta over 2 rx by 2 ry units, (rows, columns, 3) uint8."""
    rows, cols = int(2 * ry * pen.scale) + 2, int(2 * rx * pen.scale) + 2
    yy, xx = np.mgrid[0:rows, 0:cols] / (2 * ry * pen.scale)
    bands = np.sin(6.28 * 2.6 * (yy * 0.8 + facing * (xx - 0.6) * 0.6) + 0.7 * np.sin(6 * xx) + phase)
    return np.where(bands[..., None] > 0, TEAL, MAGENTA).astype(np.uint8)
