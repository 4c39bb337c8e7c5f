"""The things of the demo's world. Each is drawn from its foot (or, in the air and in water, its centre) upwards."""

from __future__ import annotations

import math
from collections.abc import Callable

from .pen import COLOURS, INK, Box, Colour, Pen, shade

Thing = Callable[[Pen, Box, Colour, Colour], None]
WHITE: Colour = (250, 250, 248)
GLASS: Colour = (176, 220, 240)


def house(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    w = h * 0.46
    pen.rectangle(x + w * 0.4, y - h * 0.98, x + w * 0.66, y - h * 0.6, shade(second, 0.7))
    pen.rectangle(x - w, y - h * 0.56, x + w, y, colour)
    pen.polygon([(x - w * 1.22, y - h * 0.54), (x, y - h), (x + w * 1.22, y - h * 0.54)], second)
    pen.rectangle(x - w * 0.22, y - h * 0.32, x + w * 0.2, y, COLOURS["brown"])
    for side in (-1, 1):
        cx = x + side * w * 0.62
        pen.rectangle(cx - w * 0.2, y - h * 0.42, cx + w * 0.2, y - h * 0.2, GLASS)
        pen.line([(cx, y - h * 0.42), (cx, y - h * 0.2)], 1.2)


def tree(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.polygon(
        [(x - h * 0.09, y), (x - h * 0.05, y - h * 0.5), (x + h * 0.05, y - h * 0.5), (x + h * 0.09, y)],
        COLOURS["brown"],
    )
    blobs = [(-0.2, 0.52, 0.2), (0.2, 0.52, 0.2), (0.0, 0.72, 0.27)]
    for dx, dy, r in blobs:
        pen.ellipse(x + dx * h, y - dy * h, r * h, r * h, colour)
    for dx, dy, r in blobs:
        pen.ellipse(x + dx * h, y - dy * h, r * h - 1.8, r * h - 1.8, colour, ink=0)
    pen.ellipse(x - 0.08 * h, y - 0.82 * h, 0.1 * h, 0.07 * h, shade(colour, 1.35), ink=0)


def mushroom(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.polygon(
        [(x - h * 0.15, y), (x - h * 0.11, y - h * 0.5), (x + h * 0.11, y - h * 0.5), (x + h * 0.15, y)],
        (240, 228, 204),
    )
    cap = [
        (x + h * 0.48 * math.cos(a), y - h * 0.45 - h * 0.52 * math.sin(a))
        for a in (math.pi * i / 24 for i in range(25))
    ]
    pen.polygon(cap, colour)
    for dx, dy, r in ((-0.24, 0.6, 0.06), (0.02, 0.8, 0.075), (0.25, 0.62, 0.06)):
        pen.ellipse(x + dx * h, y - dy * h, r * h, r * h, WHITE, ink=0)


def cat(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    tail = [
        (x + h * 0.22 + h * 0.2 * math.sin(t * 2.6), y - h * 0.08 - t * h * 0.5) for t in (i / 10 for i in range(11))
    ]
    pen.tube(tail, h * 0.08, colour)
    pen.ellipse(x, y - h * 0.28, h * 0.25, h * 0.28, colour)
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.12, y - h * 0.05, h * 0.1, h * 0.055, shade(colour, 1.25))
        ear = [(x + side * h * 0.26, y - h), (x + side * h * 0.27, y - h * 0.7), (x + side * h * 0.04, y - h * 0.84)]
        pen.polygon(ear, colour)
    pen.ellipse(x, y - h * 0.68, h * 0.28, h * 0.23, colour)
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.11, y - h * 0.72, h * 0.06, h * 0.07, (236, 240, 150))
        pen.ellipse(x + side * h * 0.11, y - h * 0.71, h * 0.022, h * 0.05, INK, ink=0)
        pen.line([(x + side * h * 0.12, y - h * 0.6), (x + side * h * 0.36, y - h * 0.62)], 1.1)
    pen.polygon(
        [(x - h * 0.04, y - h * 0.64), (x + h * 0.04, y - h * 0.64), (x, y - h * 0.6)], (230, 110, 130), ink=0.8
    )


def robot(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.line([(x, y - h * 0.8), (x, y - h * 0.95)], 2.2)
    pen.ellipse(x, y - h * 0.95, h * 0.045, h * 0.045, second)
    for side in (-1, 1):
        pen.rectangle(x + side * h * 0.14 - h * 0.07, y - h * 0.2, x + side * h * 0.14 + h * 0.07, y, (150, 154, 164))
        pen.tube([(x + side * h * 0.25, y - h * 0.48), (x + side * h * 0.37, y - h * 0.26)], h * 0.08, (150, 154, 164))
    pen.rectangle(x - h * 0.25, y - h * 0.53, x + h * 0.25, y - h * 0.16, colour)
    pen.rectangle(x - h * 0.21, y - h * 0.84, x + h * 0.21, y - h * 0.53, shade(colour, 1.3))
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.095, y - h * 0.71, h * 0.065, h * 0.065, second)
        pen.ellipse(x + side * h * 0.095, y - h * 0.71, h * 0.025, h * 0.025, INK, ink=0)
    pen.line([(x - h * 0.09, y - h * 0.59), (x + h * 0.09, y - h * 0.59)], 2)
    pen.rectangle(x - h * 0.13, y - h * 0.43, x + h * 0.13, y - h * 0.26, WHITE)


def car(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h * 0.72
    pen.polygon(
        [
            (x - h * 0.5, y - h * 0.55),
            (x - h * 0.3, y - h * 0.95),
            (x + h * 0.28, y - h * 0.95),
            (x + h * 0.52, y - h * 0.55),
        ],
        colour,
    )
    for x0, x1, slant in ((-0.4, -0.04, 0.12), (0.04, 0.4, -0.14)):
        left = x0 + max(slant, 0)
        right = x1 + min(slant, 0)
        pen.polygon(
            [
                (x + x0 * h, y - h * 0.58),
                (x + left * h, y - h * 0.86),
                (x + right * h, y - h * 0.86),
                (x + x1 * h, y - h * 0.58),
            ],
            GLASS,
            ink=1.2,
        )
    pen.rectangle(x - h * 0.85, y - h * 0.58, x + h * 0.85, y - h * 0.18, colour)
    pen.ellipse(x + h * 0.78, y - h * 0.42, h * 0.07, h * 0.08, (252, 236, 150))
    for side in (-1, 1):
        pen.ellipse(x + side * h * 0.48, y - h * 0.18, h * 0.2, h * 0.2, (60, 58, 66))
        pen.ellipse(x + side * h * 0.48, y - h * 0.18, h * 0.09, h * 0.09, (200, 204, 210))


def flower(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.tube([(x, y), (x + h * 0.02, y - h * 0.6)], h * 0.045, (66, 140, 66))
    for side, up in ((-1, 0.2), (1, 0.32)):
        pen.polygon(
            [
                (x, y - h * (up - 0.06)),
                (x + side * h * 0.16, y - h * (up + 0.12)),
                (x + side * h * 0.24, y - h * (up + 0.02)),
            ],
            (80, 160, 76),
        )
    for i in range(6):
        a = math.pi / 3 * i + 0.3
        pen.ellipse(x + h * 0.19 * math.cos(a), y - h * 0.72 - h * 0.19 * math.sin(a), h * 0.12, h * 0.12, colour)
    centre = COLOURS["orange"] if colour == COLOURS["yellow"] else COLOURS["yellow"]
    pen.ellipse(x, y - h * 0.72, h * 0.11, h * 0.11, centre)


def balloon(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    for side in (-1, 1):
        pen.line([(x + side * h * 0.22, y + h * 0.06), (x + side * h * 0.08, y + h * 0.34)], 1.2)
    envelope = []
    for i in range(40):
        a = 2 * math.pi * i / 40
        squeeze = 1 - 0.35 * max(0.0, math.sin(a)) ** 2
        envelope.append((x + h * 0.34 * math.cos(a) * squeeze, y - h * 0.14 + h * 0.36 * math.sin(a)))
    pen.polygon(envelope, colour)
    pen.ellipse(x - h * 0.13, y - h * 0.28, h * 0.07, h * 0.1, shade(colour, 1.45), ink=0)
    pen.rectangle(x - h * 0.1, y + h * 0.34, x + h * 0.1, y + h * 0.48, COLOURS["brown"])


def boat(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h
    pen.line([(x, y - h * 0.2), (x, y - h)], 2.4, shade(COLOURS["brown"], 0.7))
    pen.polygon([(x + h * 0.03, y - h * 0.96), (x + h * 0.4, y - h * 0.3), (x + h * 0.03, y - h * 0.3)], second)
    pen.polygon([(x - h * 0.03, y - h * 0.82), (x - h * 0.3, y - h * 0.3), (x - h * 0.03, y - h * 0.3)], second)
    pen.polygon(
        [
            (x - h * 0.52, y - h * 0.24),
            (x + h * 0.56, y - h * 0.24),
            (x + h * 0.36, y + h * 0.02),
            (x - h * 0.34, y + h * 0.02),
        ],
        colour,
    )


def fish(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h * 0.8
    pen.polygon(
        [(x - h * 0.42, y), (x - h * 0.8, y - h * 0.32), (x - h * 0.68, y), (x - h * 0.8, y + h * 0.32)],
        shade(colour, 0.8),
    )
    pen.polygon(
        [(x - h * 0.2, y - h * 0.26), (x + h * 0.04, y - h * 0.52), (x + h * 0.22, y - h * 0.26)], shade(colour, 0.8)
    )
    pen.ellipse(x, y, h * 0.54, h * 0.34, colour)
    pen.polygon(
        [(x - h * 0.04, y + h * 0.02), (x - h * 0.24, y + h * 0.2), (x + h * 0.02, y + h * 0.16)],
        shade(colour, 0.8),
        ink=1.2,
    )
    pen.ellipse(x + h * 0.3, y - h * 0.08, h * 0.09, h * 0.09, WHITE)
    pen.ellipse(x + h * 0.32, y - h * 0.08, h * 0.035, h * 0.035, INK, ink=0)
    pen.arc(x + h * 0.46, y + h * 0.02, h * 0.12, 60, 170, 1.6)


def submarine(pen: Pen, box: Box, colour: Colour, second: Colour) -> None:
    x, y, h = box.x, box.y, box.h * 0.8
    pen.tube([(x + h * 0.1, y - h * 0.4), (x + h * 0.1, y - h * 0.66), (x + h * 0.24, y - h * 0.66)], h * 0.06, colour)
    pen.rectangle(x - h * 0.16, y - h * 0.48, x + h * 0.22, y - h * 0.2, colour)
    pen.polygon([(x - h * 0.6, y), (x - h * 0.82, y - h * 0.22), (x - h * 0.82, y + h * 0.22)], shade(colour, 0.75))
    pen.ellipse(x, y, h * 0.66, h * 0.33, colour)
    for dx in (-0.32, 0.0, 0.32):
        pen.ellipse(x + dx * h, y - h * 0.03, h * 0.1, h * 0.1, GLASS)


THINGS: dict[str, Thing] = {
    "house": house, "tree": tree, "mushroom": mushroom, "cat": cat, "robot": robot, "car": car, "flower": flower,
    "balloon": balloon, "boat": boat, "fish": fish, "submarine": submarine,
}  # fmt: skip
# Width over height, for spacing things that stand beside each other.
SPREAD = {
    "house": 1.12, "tree": 0.85, "mushroom": 0.98, "cat": 0.7, "robot": 0.8, "car": 1.25, "flower": 0.65,
    "balloon": 0.7, "boat": 1.1, "fish": 1.12, "submarine": 1.25, "zorbl": 0.95,
}  # fmt: skip
