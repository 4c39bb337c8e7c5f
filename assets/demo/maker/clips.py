"""Draws the demo's clips: things of its world that move through its scenes, as MP4 with a caption beside each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from PIL import Image

from .pen import COLOURS, Box, Pen
from .scenes import SCENES, draw_scene
from .things import THINGS

Path3 = Callable[[float], tuple[float, float, float]]
"""Share of the clip, 0 to 1 -> place of the thing: across and up as shares of the picture, and its height as one."""


@dataclass(frozen=True)
class Clip:
    """One clip: what it is called, what is said of it, and what moves how in it. rate: frames a second of the file."""

    name: str
    caption: str
    kind: str
    colour: str
    scene: str
    path: Path3
    seconds: float = 1.1
    size: tuple[int, int] = (96, 64)
    rate: int = 16


def _across(height: float = 0.55) -> Path3:
    return lambda t: (-0.1 + 1.2 * t, 0.1, height)


def _back(height: float = 0.55) -> Path3:
    return lambda t: (1.1 - 1.2 * t, 0.1, height)


def _jump(times: float) -> Path3:
    return lambda t: (0.5, 0.1 + 0.28 * abs(math.sin(math.pi * times * t)), 0.5)


def _grow(t: float) -> tuple[float, float, float]:
    return 0.5, 0.1, 0.2 + 0.6 * t


def _swim(t: float) -> tuple[float, float, float]:
    return 0.15 + 0.7 * t, 0.35 + 0.1 * math.sin(2 * math.pi * t), 0.4


CLIPS = (
    Clip("car-right", "a red car drives to the right in a green meadow", "car", "red", "meadow", _across()),
    Clip("car-left", "a blue car drives to the left in the desert", "car", "blue", "desert", _back(), rate=24),
    Clip("cat-jump", "an orange cat jumps in the snow", "cat", "orange", "snow", _jump(1), size=(80, 80)),
    Clip("robot-hops", "a purple robot hops twice at night", "robot", "purple", "night", _jump(2), 2.4, (64, 96)),
    Clip("flower-grows", "a pink flower grows in a green meadow", "flower", "pink", "meadow", _grow, size=(64, 96)),
    Clip("fish-swims", "a yellow fish swims to the right under the sea", "fish", "yellow", "sea", _swim, 1.6),
    # too short for the longer of the two lengths of the preset
    Clip("mushroom", "a red mushroom grows at night", "mushroom", "red", "night", _grow, 0.6, (80, 80)),
)


def draw(clip: Clip, seed: int) -> Iterator[Image.Image]:
    """Its frames, one by one."""
    scene = next(each for each in SCENES if each.name == clip.scene)
    count = round(clip.seconds * clip.rate)
    for number in range(count):
        pen = Pen(*clip.size)
        # the same ground in every frame
        draw_scene(pen, scene, np.random.default_rng(seed))
        x, up, height = clip.path(number / max(1, count - 1))
        THINGS[clip.kind](pen, Box(x * pen.width, (1 - up) * pen.height, height * pen.height), COLOURS[clip.colour])
        yield pen.finish()


def write_clips(folder: Path, seed: int) -> None:
    """Write all clips, and a picture, which is a clip of one frame, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, clip in enumerate(CLIPS):
        _write(folder / f"{clip.name}.mp4", clip, seed + number)
        (folder / f"{clip.name}.txt").write_text(clip.caption + "\n", encoding="utf-8")
    still = Clip("house", "a blue house in the snow", "house", "blue", "snow", lambda t: (0.5, 0.1, 0.7), 0.1, (96, 64))
    next(draw(still, seed)).save(folder / "house.png", optimize=True)
    (folder / "house.txt").write_text(still.caption + "\n", encoding="utf-8")


def _write(path: Path, clip: Clip, seed: int) -> None:
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        # one thread, so that the file is the same on every machine
        stream = container.add_stream("libx264", rate=clip.rate, options={"crf": "18", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = *clip.size, "yuv420p"
        for picture in draw(clip, seed):
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
