"""The backgrounds of the demo's world: a sky, a ground with a soft edge, and at most one thing in the sky."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .pen import Colour, Pen, shade

GROUND = ("house", "tree", "mushroom", "cat", "robot", "car", "flower")
HORIZON = 0.64


@dataclass(frozen=True)
class Scene:
    """A background: its phrases for captions, colours, what may stand in it, and what may be in its sky."""

    name: str
    phrases: tuple[str, ...]
    sky: tuple[Colour, Colour]
    ground: Colour
    things: tuple[str, ...] = GROUND
    companions: tuple[str, ...] = ("sun", "cloud")


SCENES = (
    Scene("meadow", ("in a green meadow", "on the green grass"), ((104, 184, 240), (206, 234, 250)), (124, 196, 88)),
    Scene("snow", ("in the snow", "on a snowy day"), ((150, 176, 208), (212, 224, 238)), (246, 248, 252)),
    Scene("desert", ("in the desert", "on the yellow sand"), ((252, 178, 112), (254, 226, 172)), (232, 198, 124)),
    Scene("night", ("at night", "in the dark"), ((20, 24, 66), (54, 62, 120)), (44, 82, 78), companions=("moon",)),
    Scene("sea", ("under the sea", "in the deep blue water"), ((58, 164, 208), (24, 84, 150)), (214, 194, 136),
          things=("fish",), companions=()),
)  # fmt: skip


def draw_scene(pen: Pen, scene: Scene, rng: np.random.Generator) -> None:
    pen.gradient(*scene.sky, 0, pen.height)
    edge = pen.height * (0.86 if scene.name == "sea" else HORIZON)
    swell = 3.0 if scene.name == "sea" else 8.0
    phase = float(rng.uniform(0, 6.28))
    for lift, factor in ((0.0, 0.88), (pen.height * 0.09, 1.0)):
        xs = np.linspace(0, pen.width, 40)
        ys = edge + lift + swell * np.sin(xs / 44 + phase + lift)
        ridge = list(zip(xs.tolist(), ys.tolist(), strict=True))
        pen.polygon([*ridge, (pen.width, pen.height), (0, pen.height)], shade(scene.ground, factor), outlined=False)


def draw_companion(pen: Pen, name: str, x: float) -> None:
    """A sun, cloud or moon near the top, its centre at `x`."""
    y = 34.0
    if name == "sun":
        for i in range(8):
            a = math.pi / 4 * i
            ray = [(x + r * math.cos(a), y + r * math.sin(a)) for r in (18, 29)]
            pen.line(ray, 7, (250, 196, 40))
        pen.ellipse(x, y, 20, 20, (255, 222, 70))
    elif name == "moon":
        pen.ellipse(x, y, 22, 22, (250, 244, 206))
        for dx, dy, r in ((-7, -5, 5.5), (8, 7, 4.5)):
            pen.ellipse(x + dx, y + dy, r, r, (214, 206, 168), outlined=False)
    else:
        for ink in (True, False):
            inset = 0 if ink else pen.ink
            for dx, dy, rx, ry in ((-20, 5, 17, 12), (0, -3, 20, 18), (20, 5, 17, 12)):
                pen.ellipse(x + dx, y + dy, rx - inset, ry - inset, (254, 254, 254), outlined=ink)
