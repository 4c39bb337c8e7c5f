"""Makes up a picture of the demo's world and draws it, with its story."""

from __future__ import annotations

import numpy as np
from PIL import Image

from .captions import Group, Story
from .concept import draw_zorbl
from .pen import COLOURS, Box, Pen
from .scenes import SCENES, Scene, draw_cloud, draw_moon, draw_scene, draw_sun
from .things import SPREAD, THINGS

SIZES = {"small": 0.27, "medium": 0.42, "big": 0.6}
THING_COLOURS = tuple(name for name in COLOURS if name != "brown")
EXTRAS = {
    "snow": ("snow is falling softly", "it is a cold winter day"),
    "night": ("small stars shine in the dark sky", "everybody else is asleep"),
    "desert": ("the air is hot and dry", "the sand is warm"),
    "meadow": ("the grass is fresh and green", "it is a fine day"),
    "sea": ("the waves are small", "the water is calm"),
    "underwater": ("bubbles rise to the surface", "green weeds grow on the sand"),
}


def draw_story(width: int, height: int, rng: np.random.Generator, concept: bool = False) -> tuple[Image.Image, Story]:
    """Draw one `width` x `height` px picture. With `concept`, it is of the zorbl, which the base never sees."""
    scenes = [s for s in SCENES if s.on_ground] if concept else SCENES
    scene = scenes[int(rng.integers(len(scenes)))]
    pen = Pen(width, height)
    draw_scene(pen, scene, rng)
    sky, clouds = _sky(pen, scene, rng)
    groups = _place(pen, scene, rng, concept)
    phrase = str(rng.choice(scene.phrases))
    extras = tuple(str(e) for e in rng.permutation(EXTRAS[scene.name])[: int(rng.integers(0, 3))])
    return pen.finish(), Story(groups, phrase, sky, clouds, extras)


def _sky(pen: Pen, scene: Scene, rng: np.random.Generator) -> tuple[str, int]:
    if scene.name == "underwater":
        return "", 0
    top, side = 30.0, pen.width * float(rng.uniform(0.1, 0.9))
    sky = ""
    if scene.name == "night":
        if rng.random() < 0.6:
            draw_moon(pen, side, top)
            sky = "a pale moon"
    elif rng.random() < 0.45:
        draw_sun(pen, side, top)
        sky = "a yellow sun"
    clouds = 0 if scene.name == "night" else int(rng.choice([0, 0, 1, 2, 3]))
    for i in range(clouds):
        x = pen.width * (i + float(rng.uniform(0.25, 0.75))) / clouds
        if not sky or abs(x - side) > 52:
            draw_cloud(pen, x, 26 + float(rng.uniform(0, 22)))
        else:
            clouds -= 1
    return sky or ("a clear sky" if not clouds and scene.name != "night" else ""), clouds if sky else 0


def _choose(scene: Scene, rng: np.random.Generator, concept: bool) -> list[tuple[str, int]]:
    kinds = [*scene.on_ground, *scene.in_air, *scene.in_water]
    if concept:
        return [("zorbl", 1)] + ([(str(rng.choice(scene.on_ground)), 1)] if rng.random() < 0.25 else [])
    style = rng.random()
    first = str(rng.choice(kinds))
    if style < 0.5:
        return [(first, 1)]
    if style < 0.68:
        return [(first, int(rng.integers(2, 4)))]
    others = [k for k in kinds if k != first]
    chosen = [first, *(str(k) for k in rng.permutation(others)[: 1 + int(style > 0.93)])]
    return [(k, 1) for k in chosen]


def _place(pen: Pen, scene: Scene, rng: np.random.Generator, concept: bool) -> tuple[Group, ...]:
    """Give each thing a slot from left to right, then draw them all, and tell where each group stands."""
    wanted = _choose(scene, rng, concept)
    slots = rng.permutation(sum(n for _, n in wanted)).tolist()
    total = len(slots)
    span = pen.width / max(total, 1)
    alone = total == 1
    place = "" if not alone else str(rng.choice(["on the left", "in the middle", "on the right"], p=[0.3, 0.4, 0.3]))
    groups = []
    for kind, count in wanted:
        size = str(rng.choice(["small", "medium", "big"], p=[0.25, 0.45, 0.3] if not concept else [0.0, 0.3, 0.7]))
        colour, second = (str(c) for c in rng.choice(THING_COLOURS, 2, replace=False))
        mine = [slots.pop() for _ in range(count)]
        for slot in mine:
            h = min(SIZES[size] * min(pen.width, pen.height, 256), 0.92 * span / SPREAD[kind])
            if kind == "zorbl":
                h = min(h * 1.35, 0.96 * span / SPREAD[kind], pen.height * 0.86)
            x = span * (slot + 0.5) + float(rng.uniform(-0.04, 0.04)) * span
            if alone:
                margin = SPREAD[kind] * h / 2 + 4
                at = {"on the left": 0.24, "in the middle": 0.5, "on the right": 0.76}[place]
                x = min(max(pen.width * at, margin), pen.width - margin)
            _draw_thing(pen, scene, kind, x, h, colour, second, rng)
        where = place if alone else _side(kind, mine, total, count)
        groups.append(Group(kind, None if kind == "zorbl" else colour, second, size, count, where))
    return tuple(groups)


def _side(kind: str, mine: list[int], total: int, count: int) -> str:
    if count > 1:
        return "side by side"
    return "on the left" if mine[0] == 0 else "on the right" if mine[0] == total - 1 else "in the middle"


def _draw_thing(pen: Pen, scene: Scene, kind: str, x: float, h: float, colour: str, second: str,
                rng: np.random.Generator) -> None:  # fmt: skip
    horizon = pen.height * scene.horizon
    jitter = float(rng.uniform(0, 1))
    if kind == "zorbl":
        draw_zorbl(pen, Box(x, max(pen.height * (0.82 + 0.12 * jitter), h + 6), h), rng)
        return
    if kind in scene.in_air:
        y = max(h * 0.55 + 4, pen.height * (0.28 + 0.12 * jitter))
    elif kind == "boat":
        y = max(horizon + pen.height * (0.1 + 0.2 * jitter), h + 4)
    elif kind in scene.in_water:
        y = pen.height * (0.3 + 0.36 * jitter)
    else:
        y = max(horizon + pen.height * (0.17 + 0.15 * jitter), h + 4)
    THINGS[kind](pen, Box(x, y, h), COLOURS[colour], COLOURS[second])


def draw_pattern(width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """A sheet of stripes, checks, dots and lines in any colour: practice for the autoencoder only, so that it can carry
    more than the base's own world (a real one can, too)."""
    pen = Pen(width, height)
    colour = lambda: tuple(int(v) for v in rng.integers(0, 256, 3))  # noqa: E731
    pen.gradient(colour(), colour(), 0, pen.height)
    for _ in range(int(rng.integers(4, 9))):
        x, y, r = rng.uniform(0, pen.width), rng.uniform(0, pen.height), float(rng.uniform(18, 80))
        kind = int(rng.integers(5))
        a, b, turn = colour(), colour(), float(rng.uniform(0, 3.14))
        if kind == 0:
            outline = [(x + r * np.cos(t), y + r * np.sin(t)) for t in np.linspace(0, 6.28, 40)]
            side = int(2 * r * pen.scale)
            yy, xx = np.mgrid[0:side, 0:side] / pen.scale
            wave = np.sin((xx * np.cos(turn) + yy * np.sin(turn)) * 6.28 / rng.uniform(7, 22))
            pen.paste_pattern(np.where(wave[..., None] > 0, a, b).astype(np.uint8), outline, (x - r, y - r))
        elif kind == 1:
            for _ in range(14):
                q = float(rng.uniform(1.5, 6))
                pen.ellipse(x + rng.uniform(-r, r), y + rng.uniform(-r, r), q, q, a, ink=float(rng.choice([0, 1.2])))
        elif kind == 2:
            n = int(rng.integers(3, 8))
            ring = [(x + r * rng.uniform(0.5, 1) * np.cos(turn + i * 6.28 / n),
                     y + r * rng.uniform(0.5, 1) * np.sin(turn + i * 6.28 / n)) for i in range(n)]  # fmt: skip
            pen.polygon(ring, a)
        elif kind == 3:
            turns = float(rng.uniform(1.5, 3))
            curl = [(x + r * t * np.cos(turn + turns * 6.28 * t), y + r * t * np.sin(turn + turns * 6.28 * t))
                    for t in np.linspace(0.08, 1, 50)]  # fmt: skip
            pen.tube(curl, float(rng.uniform(2, 9)), b)
        else:
            pen.ellipse(x, y, r * 0.6, r * float(rng.uniform(0.2, 0.6)), a)
    return pen.finish()
