"""Draws random captioned pictures of several aspect ratios, as a person's folder holds them."""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image

RATIOS = ((1, 1), (4, 3), (3, 4), (3, 2), (2, 3), (16, 9), (9, 16), (5, 4))
"""Width to height, in the order in which pictures are drawn."""
CAPTIONS = ("a photo of a red circle", "the small blue square on a white house", "a cat and a dog", "a green star")
COARSE = 12


def draw_pictures(folder: Path, count: int, resolution: int) -> None:
    """Write `count` PNG files with a caption each into `folder` (made if missing), the same ones at each call.

    resolution: px; each picture has about the area of a square with this side.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(0)
    for number in range(count):
        across, down = RATIOS[number % len(RATIOS)]
        scale = resolution / (across * down) ** 0.5
        size = round(across * scale), round(down * scale)
        # smooth, so that a PNG of full size is written in little time
        coarse = Image.frombytes("RGB", (COARSE, COARSE), source.randbytes(3 * COARSE * COARSE))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"picture_{number:03d}.png", compress_level=1)
        caption = f"{CAPTIONS[number % len(CAPTIONS)]}, number {number}"
        (folder / f"picture_{number:03d}.txt").write_text(caption, encoding="utf-8")
