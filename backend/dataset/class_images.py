"""Names the class images that the base model draws into a regularization folder, and counts those that are missing."""

from __future__ import annotations

import os
from pathlib import Path

from backend.dataset.walk import walk

DRAW_CLASS_IMAGES = "launcher.py sample --class-images SETTINGS.toml, or the Preview tab"
"""What draws them, as findings tell it."""

_NAME = "class-{:05d}.png"


def missing_names(folder: Path, count: int) -> dict[str, int]:
    """Files that `folder` lacks of `count` images, each with its number from 0; images of any name there count."""
    is_there = os.path.isdir(folder)  # False too for a path that can't be looked at
    files = [path for paths in walk(folder).pictures.values() for path in paths] if is_there else []
    names = {path.name for path in files if path.parent == folder}
    missing = max(0, count - len(files))
    free = ((_NAME.format(number), number) for number in range(count + len(files)))
    return dict([each for each in free if each[0] not in names][:missing])
