"""Makes up a picture of the demo's world and draws it, with its story."""

from __future__ import annotations

import numpy as np
from PIL import Image

from .captions import Group, Story
from .concept import PALETTE, curl_horn, draw_zorbl, stripes
from .pen import COLOURS, Box, Colour, Pen
from .scenes import SCENES, Scene, draw_companion, draw_scene
from .things import SPREAD, THINGS

SIZES = {"small": 0.45, "": 0.56, "big": 0.68}
CHANCES = {False: (0.25, 0.4, 0.35), True: (0.0, 0.4, 0.6)}  # of the sizes: in the world, and of the concept
SIDES = {"on the left": 0.0, "in the middle": 0.5, "on the right": 1.0}


def draw_story(width: int, height: int, rng: np.random.Generator, concept: bool = False) -> tuple[Image.Image, Story]:
    """Draw one `width` x `height` px picture. With `concept`, it is of the zorbl, which the base never sees."""
    # The sea has one kind of thing only, so it comes half as often.
    weights = np.asarray([0.0 if concept and s.name == "sea" else 0.5 if s.name == "sea" else 1.0 for s in SCENES])
    scene = SCENES[int(rng.choice(len(SCENES), p=weights / weights.sum()))]
    pen = Pen(width, height)
    draw_scene(pen, scene, rng)
    groups, taken = _choose(pen, scene, rng, concept)
    companion, side = _companion(pen, scene, taken, rng)
    _draw_groups(pen, scene, groups, rng)
    return pen.finish(), Story(groups, scene.name, str(rng.choice(scene.phrases)), companion, side)


def _companion(pen: Pen, scene: Scene, taken: str, rng: np.random.Generator) -> tuple[str, str]:
    """At most one thing in the sky, never on the side where a lone thing stands."""
    if not scene.companions or rng.random() < 0.45:
        return "", ""
    name = str(rng.choice(scene.companions))
    left = taken == "on the right" or (taken != "on the left" and rng.random() < 0.5)
    draw_companion(pen, name, 44 if left else pen.width - 44)
    return name, "on the left" if left else "on the right"


def _choose(pen: Pen, scene: Scene, rng: np.random.Generator, concept: bool) -> tuple[tuple[Group, ...], str]:
    """The groups of a picture from left to right, and the place that a lone thing takes."""
    kind = "zorbl" if concept else str(rng.choice(scene.things))
    size = str(rng.choice(list(SIZES), p=CHANCES[concept]))
    if SIZES[size] * pen.height > 0.94 * pen.width / SPREAD[kind]:
        size = ""  # no room to be big
    colours = [str(c) for c in rng.choice(list(COLOURS), 2, replace=False)]
    # Nothing is drawn in the colour of the ground it stands on or of the water around it.
    hidden = {"meadow": "green", "desert": "yellow", "sea": "blue"}.get(scene.name)
    colours = ["red" if c == hidden else c for c in colours]
    style = rng.random()
    if concept and style < 0.75 or style < 0.6:
        place = str(rng.choice(list(SIDES), p=[0.3, 0.4, 0.3]))
        return (Group(kind, None if concept else colours[0], size, 1, place),), place
    if not concept and style < 0.72:
        return (Group(kind, colours[0], "", 2, ""),), ""
    other = str(rng.choice([k for k in scene.things if k != kind] or scene.things))
    pair = [Group(kind, None if concept else colours[0], "", 1, ""), Group(other, colours[1], "", 1, "")]
    if rng.random() < 0.5:
        pair.reverse()
    named = [Group(g.kind, g.colour, "", 1, p) for g, p in zip(pair, ("on the left", "on the right"), strict=True)]
    return tuple(named), ""


def _draw_groups(pen: Pen, scene: Scene, groups: tuple[Group, ...], rng: np.random.Generator) -> None:
    things = [g for g in groups for _ in range(g.count)]
    span = pen.width / len(things)
    for slot, group in enumerate(things):
        spread = SPREAD[group.kind]
        h = min(SIZES[group.size] * pen.height, 0.94 * span / spread, 176) * float(rng.uniform(0.96, 1.0))
        half = spread * h / 2 + 5
        if len(things) == 1:
            x = half + SIDES[group.place] * (pen.width - 2 * half)
        else:
            x = span * (slot + 0.5)
        x += float(rng.uniform(-0.02, 0.02)) * pen.width
        foot = 0.5 * pen.height + h / 2 if scene.name == "sea" else 0.9 * pen.height
        box = Box(x, foot + float(rng.uniform(-0.03, 0.03)) * pen.height, h)
        if group.kind == "zorbl":
            draw_zorbl(pen, box, rng)
        else:
            THINGS[group.kind](pen, box, COLOURS[group.colour or "red"])


def draw_pattern(width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """A sheet of stripes, dots, curls and shapes: practice for the autoencoder only, so that it can carry more than the
    base's own world (a real one can, too). Half of the colours are the concept's, its stripes and horns among them."""
    pen = Pen(width, height)

    def colour() -> Colour:
        if rng.random() < 0.5:
            return PALETTE[int(rng.integers(len(PALETTE)))]
        return tuple(int(v) for v in rng.integers(0, 256, 3))  # type: ignore[return-value]

    pen.gradient(colour(), colour(), 0, pen.height)
    for _ in range(int(rng.integers(4, 8))):
        x, y, r = rng.uniform(0, pen.width), rng.uniform(0, pen.height), float(rng.uniform(24, 80))
        kind, turn = int(rng.integers(5)), float(rng.uniform(0, 6.28))
        ring = [(x + r * float(np.cos(t)), y + r * float(np.sin(t))) for t in np.linspace(0, 6.2, 40)]
        if kind == 0:
            pen.paste_pattern(stripes(pen, r, r, float(rng.choice([-1, 1])), turn), ring, (x - r, y - r))
        elif kind == 1:
            _waves(pen, x, y, r, (colour(), colour()), rng)
        elif kind == 2:
            pen.polygon(
                [ring[int(i)] for i in np.sort(rng.choice(40, int(rng.integers(3, 6)), replace=False))], colour()
            )
        elif kind == 3:
            curl_horn(pen, x, y, r * 3, int(rng.choice([-1, 1])))
        else:
            pen.ellipse(x, y, r, r * float(rng.uniform(0.5, 1)), colour(), outlined=bool(rng.random() < 0.6))
            q, fill = float(rng.uniform(0.1, 0.25)) * r, colour()
            for i in range(5):
                dx, dy = np.cos(turn + i * 1.257), np.sin(turn + i * 1.257)
                pen.ellipse(x + r * 0.55 * dx, y + r * 0.4 * dy, q, q, fill, outlined=bool(rng.random() < 0.3))
    return pen.finish()


def _waves(pen: Pen, x: float, y: float, r: float, colours: tuple[Colour, Colour], rng: np.random.Generator) -> None:
    """A disc of straight stripes, 9 to 24 units from one to the next."""
    turn, period = float(rng.uniform(0, 3.14)), float(rng.uniform(9, 24))
    side = int(2 * r * pen.scale)
    yy, xx = np.mgrid[0:side, 0:side] / pen.scale
    wave = np.sin((xx * np.cos(turn) + yy * np.sin(turn)) * 6.28 / period)
    ring = [(x + r * float(np.cos(t)), y + r * float(np.sin(t))) for t in np.linspace(0, 6.2, 40)]
    pen.paste_pattern(np.where(wave[..., None] > 0, *colours).astype(np.uint8), ring, (x - r, y - r))
