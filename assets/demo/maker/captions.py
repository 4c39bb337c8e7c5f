"""Captions for the demo's world, from three to some forty words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PLURALS = {"fish": "fish"}
OPENINGS = ("a picture of", "a drawing of", "a bright storybook picture of")
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "ti", "vo", "wi", "ya", "zo", "lor",
             "mir", "bel", "tan", "kor", "zel", "dub", "rif")  # fmt: skip
VERBS = {"cat": "sitting", "robot": "standing", "house": "standing", "tree": "growing", "mushroom": "growing",
         "flower": "growing", "car": "parked", "fish": "swimming", "zorbl": "standing"}  # fmt: skip
SKIES = {
    "sun": ("a yellow sun", "a yellow sun is shining in the sky"),
    "cloud": ("a white cloud", "a white cloud is floating in the sky"),
    "moon": ("a pale moon", "a pale round moon is in the sky"),
}
BACKGROUNDS = {
    "meadow": "the sky is blue and the grass is green", "snow": "the ground is white with snow and the sky is grey",
    "desert": "the sky is orange and the sand is warm", "night": "the sky is dark blue and all is quiet",
    "sea": "the water is blue and there is sand at the bottom",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One kind of thing in a picture: `count` of them, of one colour (None: its own colours), size and place."""

    kind: str
    colour: str | None
    size: str
    count: int
    place: str

    def noun(self) -> str:
        return self.kind if self.count == 1 else PLURALS.get(self.kind, self.kind + "s")


@dataclass(frozen=True)
class Story:
    """All that a picture shows, the main group first; `companion` is in the sky, on the `companion_side`."""

    groups: tuple[Group, ...]
    scene: str
    scene_phrase: str
    companion: str
    companion_side: str


def invent_name(rng: np.random.Generator) -> str:
    """A made-up name. Names teach the text encoders' word pieces that an unknown word is a word too."""
    return "".join(rng.choice(SYLLABLES, int(rng.integers(2, 4))))


def _describe(group: Group, sized: bool) -> str:
    words = ["a" if group.count == 1 else "two"]
    words += [group.size] if sized and group.size else []
    words += [group.colour] if group.colour else []
    return " ".join([*words, group.noun()]).replace("a orange", "an orange")


def caption(story: Story, rng: np.random.Generator, detail: float) -> str:
    """Put the story in words; `detail` from 0 (things, colours and scene alone) to 1 (everything)."""
    main, *others = story.groups
    text = _describe(main, rng.random() < 0.4 + detail)
    if main.count == 1 and detail > 0.4 and rng.random() < 0.1:
        text += f" called {invent_name(rng)}"
    if detail > 0.45 and rng.random() < 0.5:
        text += f" {VERBS[main.kind]}"
    placed = detail > 0.3 and rng.random() < 0.8
    text += f" {main.place}" if placed and main.place else ""
    for other in others:
        sided = placed and main.place
        text += (" and " if sided else " next to ") + _describe(other, rng.random() < detail)
        text += f" {other.place}" if sided else ""
    if len(text.split()) < 3 and detail < 0.06:
        text += f" {VERBS[main.kind]}"
    elif len(text.split()) < 3 or (detail > 0.06 and rng.random() < 0.9):
        text += f" {story.scene_phrase}"
    if story.companion and detail > 0.2 and rng.random() < 0.9:
        short, long = SKIES[story.companion]
        text += f", {long}, {story.companion_side}" if detail > 0.75 else f", under {short}"
    if detail > 0.8:
        text += f", {BACKGROUNDS[story.scene]}"
    if rng.random() < 0.35 * (detail + 0.2):
        text = f"{rng.choice(OPENINGS)} {text}"
    return text
