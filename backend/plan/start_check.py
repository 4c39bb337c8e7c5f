"""Checks what a run needs besides valid settings, before it is started: the base model and the image folders."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from backend.base.paths import resolve
from backend.base.problems import Problem
from backend.config import load
from backend.config.endings import CLIPS
from backend.config.schema import Config
from backend.dataset.file_lists import is_list
from backend.dataset.images import EXTENSIONS
from backend.families.table import family
from backend.plan import base_model_check


def start_problems(config: Config) -> list[Problem]:
    """Every problem that would stop a run of a valid config: an incomplete base model, folders without images."""
    problems = [*load.ready(config)]
    if config.model.base_model is not None:
        problems += base_model_check.problems(config)
    clips = family(config.model.family).video is not None
    rows = {
        "dataset.folders": config.dataset.folders,
        "validation.validation_folders": config.validation.validation_folders,
    }
    for name, folders in rows.items():
        for index, folder in enumerate(folders):
            path = resolve(folder.path)
            # what a list names is looked at by the scan
            problems += [] if is_list(path) else _folder_problems(path, f"{name}[{index}].path", clips)
            for column in ("control_path", "mask_path"):
                inner = getattr(folder, column)
                if inner is not None:
                    problems += _folder_problems(resolve(inner), f"{name}[{index}].{column}", clips=False)
    return problems


def _folder_problems(path: Path, setting: str, clips: bool) -> list[Problem]:
    if not path.exists():
        return [Problem(setting, None, f"there is no folder {path}", "Check the path, and that its disk is connected.")]
    if not path.is_dir():
        return [Problem(setting, None, f"{path} is a file, not a folder", f"Choose its folder: {path.parent}.")]
    try:
        has_one = _holds_any(path, EXTENSIONS | CLIPS if clips else EXTENSIONS)
    except OSError as wrong:
        return [
            Problem(
                setting,
                None,
                f"{path} can't be read: {wrong.strerror}",
                "Change its permissions so that you can read it.",
            )
        ]
    if not has_one:
        one, many = ("image or video", "images or videos") if clips else ("image", "images")
        return [Problem(setting, None, f"there is no {one} in {path}", f"Choose the folder with the {many}.")]
    return []


def _holds_any(root: Path, endings: Collection[str]) -> bool:
    """Whether a file below `root` has one of the endings: stops at the first. OSError where `root` can't be read."""
    os.scandir(root).close()
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        if any(os.path.splitext(name)[1].lower() in endings for name in files):
            return True
        # as the scan does: links are followed, loops of links are not
        seen.add(os.path.realpath(folder))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(folder, name)) not in seen]
    return False
