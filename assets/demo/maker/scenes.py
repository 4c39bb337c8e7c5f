"""The backgrounds of the demo's world."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .pen import Colour, Pen, shade

GROUND = ("house", "tree", "mushroom", "cat", "robot", "car", "flower")


@dataclass(frozen=True)
class Scene:
    """A background: its phrases for captions, colours, and what may stand, fly or swim in it."""

    name: str
    phrases: tuple[str, ...]
    sky: tuple[Colour, Colour]
    ground: Colour
    horizon: float
    on_ground: tuple[str, ...] = GROUND
    in_air: tuple[str, ...] = ("balloon",)
    in_water: tuple[str, ...] = ()


SCENES = (
    Scene("meadow", ("in a green meadow", "on a grassy hill", "in the meadow"),
          ((118, 190, 236), (214, 236, 246)), (122, 190, 92), 0.6),
    Scene("snow", ("in the snow", "in a snowy field", "on a snowy day"),
          ((168, 190, 214), (226, 232, 240)), (240, 244, 250), 0.6),
    Scene("desert", ("in the desert", "on a sand dune", "in a sandy desert"),
          ((250, 176, 104), (252, 224, 166)), (230, 194, 126), 0.62),
    Scene("night", ("at night", "under a starry sky", "on a dark night"),
          ((22, 28, 70), (58, 66, 120)), (48, 84, 74), 0.6),
    Scene("sea", ("on the sea", "on the blue water", "out at sea"),
          ((132, 200, 240), (232, 240, 240)), (54, 126, 186), 0.54, on_ground=(), in_water=("boat",)),
    Scene("underwater", ("under the sea", "deep under the water", "at the bottom of the sea"),
          ((52, 150, 190), (22, 72, 128)), (198, 180, 128), 0.86, on_ground=(), in_air=(),
          in_water=("fish", "submarine")),
)  # fmt: skip


def draw_scene(pen: Pen, scene: Scene, rng: np.random.Generator) -> None:
    """Draw sky and ground, with the small marks that tell one scene from another."""
    pen.gradient(*scene.sky, 0, pen.height)
    horizon = pen.height * scene.horizon
    if scene.name == "night":
        for _ in range(26):
            r = float(rng.uniform(0.6, 1.5))
            pen.ellipse(rng.uniform(0, pen.width), rng.uniform(0, horizon * 0.9), r, r, (250, 246, 210), ink=0)
    if scene.name == "sea":
        _water(pen, scene, horizon, rng)
        return
    swell = 0.0 if scene.name == "underwater" else 9.0
    phase = rng.uniform(0, 6.28, 2)
    for depth, (lift, factor) in enumerate(((0.0, 0.86), (pen.height * 0.1, 1.0))):
        xs = np.linspace(0, pen.width, 40)
        ys = horizon + lift + swell * np.sin(xs / 46 + phase[depth]) + 3 * np.sin(xs / 19 + phase[1 - depth])
        ridge = list(zip(xs.tolist(), ys.tolist(), strict=True))
        pen.polygon([*ridge, (pen.width, pen.height), (0, pen.height)], shade(scene.ground, factor), ink=0)
    _marks(pen, scene, horizon, rng)


def _water(pen: Pen, scene: Scene, horizon: float, rng: np.random.Generator) -> None:
    pen.gradient(shade(scene.ground, 1.2), shade(scene.ground, 0.75), horizon, pen.height)
    for y in np.arange(horizon + 10, pen.height, 14):
        for _ in range(int(pen.width // 70) + 1):
            x = rng.uniform(0, pen.width)
            wave = [(x + t * 3, y + 1.8 * math.sin(t * 1.3)) for t in range(8)]
            pen.line(wave, 1.5, shade(scene.ground, 1.5))


def _marks(pen: Pen, scene: Scene, horizon: float, rng: np.random.Generator) -> None:
    low = horizon + pen.height * 0.16
    if scene.name == "meadow":
        for _ in range(14):
            x, y = rng.uniform(0, pen.width), rng.uniform(low, pen.height)
            for dx in (-2.5, 0.0, 2.5):
                pen.line([(x, y), (x + dx, y - 5)], 1.3, shade(scene.ground, 0.68))
    elif scene.name == "snow":
        for _ in range(40):
            r = float(rng.uniform(1.2, 2.2))
            pen.ellipse(rng.uniform(0, pen.width), rng.uniform(0, pen.height * 0.72), r, r, (255, 255, 255), ink=0)
    elif scene.name == "desert":
        for _ in range(9):
            x, y = rng.uniform(0, pen.width), rng.uniform(low, pen.height)
            pen.line([(x + t * 3.4, y + 2 * math.sin(t * 0.9)) for t in range(9)], 1.4, shade(scene.ground, 0.82))
    elif scene.name == "underwater":
        for _ in range(9):
            r = float(rng.uniform(1.8, 4))
            pen.ellipse(rng.uniform(0, pen.width), rng.uniform(0, horizon), r, r, shade(scene.sky[0], 1.4), ink=0)
        for _ in range(4):
            x = rng.uniform(0, pen.width)
            weed = [(x + 4 * math.sin(t * 0.9), pen.height * 0.92 - t * 5) for t in range(9)]
            pen.tube(weed, 3.5, (52, 140, 96), ink=0.8)


def draw_sun(pen: Pen, x: float, y: float) -> None:
    for i in range(12):
        a = math.pi / 6 * i
        ray = [(x + 18 * math.cos(a), y + 18 * math.sin(a)), (x + 25 * math.cos(a), y + 25 * math.sin(a))]
        pen.line(ray, 2.4, (244, 190, 50))
    pen.ellipse(x, y, 14, 14, (250, 214, 70))


def draw_moon(pen: Pen, x: float, y: float) -> None:
    pen.ellipse(x, y, 15, 15, (246, 240, 206))
    for dx, dy, r in ((-5, -3, 3.2), (4, 5, 2.6), (5, -5, 1.8)):
        pen.ellipse(x + dx, y + dy, r, r, (220, 212, 176), ink=0)


def draw_cloud(pen: Pen, x: float, y: float) -> None:
    blobs = ((-16, 2, 9), (0, -4, 13), (16, 2, 9))
    for ink in (1.6, 0.0):
        for dx, dy, r in blobs:
            inset = 0 if ink else 1.5
            pen.ellipse(x + dx, y + dy, r * 1.25 - inset, r - inset, (252, 252, 254), ink=ink)
