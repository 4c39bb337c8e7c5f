"""Captions for the demo's world, from three to some forty words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

NUMBERS = ("no", "one", "two", "three")
PLURALS = {"fish": "fish", "mushroom": "mushrooms"}
SECOND_PART = {"house": "roof", "boat": "sail", "robot": "eyes"}
OPENINGS = ("a picture of", "a drawing of", "a storybook picture of", "a bright little drawing of")
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "ti", "vo", "wi", "ya", "zo", "lor",
             "mir", "bel", "tan", "kor", "zel", "dub", "rif")  # fmt: skip
VERBS = {"cat": "sitting", "robot": "standing", "house": "standing", "tree": "growing", "mushroom": "growing",
         "flower": "growing", "car": "parked", "balloon": "floating", "boat": "sailing", "fish": "swimming",
         "submarine": "diving", "zorbl": "standing"}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One kind of thing in a picture: `count` of them, of one colour (None: its own colours) and size."""

    kind: str
    colour: str | None
    second: str
    size: str
    count: int
    place: str

    def noun(self) -> str:
        return self.kind if self.count == 1 else PLURALS.get(self.kind, self.kind + "s")


@dataclass(frozen=True)
class Story:
    """All that a picture shows, the main group first."""

    groups: tuple[Group, ...]
    scene_phrase: str
    sky: str = ""
    clouds: int = 0
    extras: tuple[str, ...] = field(default=())


def invent_name(rng: np.random.Generator) -> str:
    """A made-up name. Names teach the text encoders' word pieces that an unknown word is a word too."""
    return "".join(rng.choice(SYLLABLES, int(rng.integers(2, 4))))


def _describe(group: Group, rng: np.random.Generator, detail: float) -> str:
    words = ["a" if group.count == 1 else NUMBERS[group.count]]
    if group.size and (rng.random() < detail or group.size != "medium"):
        words.append({"medium": "middle-sized"}.get(group.size, group.size) if detail > 0.6 else group.size)
        if words[-1] == "medium":
            words.pop()
    if group.colour:
        words.append(group.colour)
    words.append(group.noun())
    text = " ".join(words).replace("a orange", "an orange")
    part = SECOND_PART.get(group.kind)
    if part and group.colour and rng.random() < detail:
        article = "" if part == "eyes" else "a "
        text += f" with {article}{group.second} {part}"
    return text


def caption(story: Story, rng: np.random.Generator, detail: float) -> str:
    """Put the story in words; `detail` from 0 (the main thing alone) to 1 (everything)."""
    main, *others = story.groups
    text = _describe(main, rng, detail)
    if detail > 0.25 and rng.random() < 0.12:
        text += f" called {invent_name(rng)}"
    if detail > 0.3 and rng.random() < 0.4 + 0.5 * detail:
        text += f" {VERBS[main.kind]}" if rng.random() < 0.5 else ""
        text += f" {main.place}" if main.place else ""
    if detail > 0.08 and rng.random() < 0.85:
        text += f" {story.scene_phrase}"
    if others and detail > 0.2:
        described = [_describe(g, rng, detail - 0.15) for g in others]
        text += (" next to " if rng.random() < 0.6 else " with ") + " and ".join(described)
    if story.sky and detail > 0.4 and rng.random() < 0.5 + detail / 2:
        clouds = f" and {_clouds(story.clouds)}" if story.clouds else ""
        text += f", under {story.sky}{clouds}"
    if story.extras and detail > 0.55:
        text += ", " + " and ".join(story.extras)
    if rng.random() < 0.35 * (detail + 0.3):
        text = f"{rng.choice(OPENINGS)} {text}"
    return text


def _clouds(count: int) -> str:
    return "a cloud" if count == 1 else f"{NUMBERS[count]} clouds"
