"""The things of the demo's world, bold and chunky. Each is drawn from its foot (a fish: its lowest point) upwards."""

from __future__ import annotations

import math
from collections.abc import Callable

from .pen import INK, Box, Colour, Pen, shade

Thing = Callable[[Pen, Box, Colour], None]
BARK: Colour = (132, 84, 52)
CREAM: Colour = (246, 234, 206)
GLASS: Colour = (186, 226, 246)
GREY: Colour = (158, 162, 176)
LEAF: Colour = (52, 136, 68)
WHITE: Colour = (252, 252, 248)


def house(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.rectangle(x - h * 0.44, y - h * 0.58, x + h * 0.44, y, colour)
    pen.polygon([(x - h * 0.56, y - h * 0.54), (x, y - h), (x + h * 0.56, y - h * 0.54)], (112, 62, 50))
    pen.rectangle(x + h * 0.02, y - h * 0.38, x + h * 0.28, y, BARK)
    pen.rectangle(x - h * 0.32, y - h * 0.42, x - h * 0.1, y - h * 0.18, GLASS)


def tree(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.rectangle(x - h * 0.1, y - h * 0.5, x + h * 0.1, y, BARK)
    blobs = [(-0.22, 0.54, 0.21), (0.22, 0.54, 0.21), (0.0, 0.72, 0.28)]
    for ink in (True, False):
        for dx, dy, r in blobs:
            inset = 0 if ink else pen.ink
            pen.ellipse(x + dx * h, y - dy * h, r * h - inset, r * h - inset, colour, outlined=ink)


def mushroom(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.rectangle(x - h * 0.17, y - h * 0.5, x + h * 0.17, y, CREAM)
    arch = (math.pi * i / 24 for i in range(25))
    pen.polygon([(x + h * 0.52 * math.cos(a), y - h * 0.42 - h * 0.58 * math.sin(a)) for a in arch], colour)
    for dx, dy, r in ((-0.25, 0.58, 0.085), (0.02, 0.79, 0.1), (0.27, 0.58, 0.085)):
        pen.ellipse(x + dx * h, y - dy * h, r * h, r * h, WHITE, outlined=False)


def cat(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    tail = [(x + h * (0.2 + 0.16 * math.sin(t * 0.26)), y - h * (0.08 + t * 0.045)) for t in range(11)]
    pen.tube(tail, h * 0.11, colour)
    pen.ellipse(x, y - h * 0.26, h * 0.27, h * 0.26, colour)
    for side in (-1, 1):
        ear = [(x + side * h * 0.32, y - h), (x + side * h * 0.33, y - h * 0.66), (x + side * h * 0.02, y - h * 0.84)]
        pen.polygon(ear, colour)
    pen.ellipse(x, y - h * 0.65, h * 0.34, h * 0.26, colour)
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.14, y - h * 0.7, h * 0.085, h * 0.095, WHITE, outlined=False)
        pen.ellipse(x + side * h * 0.13, y - h * 0.69, h * 0.05, h * 0.065, INK, outlined=False)
    pen.ellipse(x, y - h * 0.55, h * 0.055, h * 0.04, INK, outlined=False)


def robot(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.rectangle(x - h * 0.4, y - h * 0.5, x + h * 0.4, y - h * 0.34, GREY)
    for side in (-1, 1):
        pen.rectangle(x + side * h * 0.15 - h * 0.09, y - h * 0.2, x + side * h * 0.15 + h * 0.09, y, GREY)
    pen.rectangle(x - h * 0.28, y - h * 0.58, x + h * 0.28, y - h * 0.14, colour)
    pen.rectangle(x - h * 0.11, y - h * 0.46, x + h * 0.11, y - h * 0.26, CREAM)
    pen.rectangle(x - h * 0.25, y - h, x + h * 0.25, y - h * 0.58, colour)
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.12, y - h * 0.83, h * 0.075, h * 0.075, WHITE, outlined=False)
    pen.rectangle(x - h * 0.15, y - h * 0.71, x + h * 0.15, y - h * 0.65, INK)


def car(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x, box.y, box.h * 0.8
    cabin = [(-0.5, 0.55), (-0.3, 1.0), (0.26, 1.0), (0.5, 0.55)]
    pen.polygon([(x + dx * h, y - dy * h) for dx, dy in cabin], colour)
    window = [(-0.32, 0.6), (-0.2, 0.87), (0.18, 0.87), (0.33, 0.6)]
    pen.polygon([(x + dx * h, y - dy * h) for dx, dy in window], GLASS)
    pen.rectangle(x - h * 0.76, y - h * 0.58, x + h * 0.76, y - h * 0.18, colour)
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.42, y - h * 0.2, h * 0.22, h * 0.22, INK)
        pen.ellipse(x + side * h * 0.42, y - h * 0.2, h * 0.1, h * 0.1, GREY, outlined=False)


def flower(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.rectangle(x - h * 0.055, y - h * 0.5, x + h * 0.055, y, LEAF)
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.17, y - h * 0.16, h * 0.14, h * 0.08, LEAF)
    for i in range(5):
        a = math.pi * (0.4 * i + 0.5)
        pen.ellipse(x + h * 0.2 * math.cos(a), y - h * 0.67 - h * 0.2 * math.sin(a), h * 0.14, h * 0.14, colour)
    pen.ellipse(x, y - h * 0.67, h * 0.14, h * 0.14, CREAM)


def fish(pen: Pen, box: Box, colour: Colour) -> None:
    x, y, h = box.x + box.h * 0.08, box.y - box.h * 0.5, box.h
    pen.polygon([(x - h * 0.3, y), (x - h * 0.68, y - h * 0.34), (x - h * 0.68, y + h * 0.34)], shade(colour, 0.78))
    pen.polygon([(x - h * 0.24, y - h * 0.2), (x, y - h * 0.5), (x + h * 0.24, y - h * 0.2)], shade(colour, 0.78))
    pen.ellipse(x, y, h * 0.48, h * 0.34, colour)
    pen.ellipse(x + h * 0.24, y - h * 0.08, h * 0.1, h * 0.1, WHITE, outlined=False)
    pen.ellipse(x + h * 0.26, y - h * 0.08, h * 0.055, h * 0.055, INK, outlined=False)


THINGS: dict[str, Thing] = {
    "house": house, "tree": tree, "mushroom": mushroom, "cat": cat, "robot": robot, "car": car, "flower": flower,
    "fish": fish,
}  # fmt: skip
# Width over height, for spacing things that stand beside each other.
SPREAD = {
    "house": 1.16, "tree": 0.9, "mushroom": 1.08, "cat": 0.84, "robot": 0.84, "car": 1.26, "flower": 0.72,
    "fish": 1.2, "zorbl": 1.0,
}  # fmt: skip
