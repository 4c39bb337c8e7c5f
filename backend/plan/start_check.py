"""Checks what a run needs besides valid settings, before it is started: the base model and the image folders."""

from __future__ import annotations

from pathlib import Path

from backend.base.paths import resolve
from backend.base.problems import Problem
from backend.config import load
from backend.config.schema import Config
from backend.dataset.images import EXTENSIONS
from backend.plan import base_model_check


def start_problems(config: Config) -> list[Problem]:
    """Every problem that would stop a run of a valid config: an incomplete base model, folders without images."""
    problems = [*load.ready(config)]
    if config.model.base_model is not None:
        problems += base_model_check.problems(config)
    for index, folder in enumerate(config.dataset.folders):
        problems += _folder_problems(resolve(folder.path), f"dataset.folders[{index}].path")
        if folder.control_path is not None:
            problems += _folder_problems(resolve(folder.control_path), f"dataset.folders[{index}].control_path")
    for index, row in enumerate(config.validation.validation_folders):
        place = f"validation.validation_folders[{index}]"
        problems += _folder_problems(resolve(row.path), f"{place}.path")
        if row.control_path is not None:
            problems += _folder_problems(resolve(row.control_path), f"{place}.control_path")
    return problems


def _folder_problems(path: Path, setting: str) -> list[Problem]:
    if not path.exists():
        return [Problem(setting, None, f"there is no folder {path}", "Check the path, and that its disk is connected.")]
    if not path.is_dir():
        return [Problem(setting, None, f"{path} is a file, not a folder", f"Choose its folder: {path.parent}.")]
    try:
        # Stops at the first image: 20,000 of them must not delay the button.
        has_image = any(file.suffix.lower() in EXTENSIONS for file in path.rglob("*"))
    except OSError as wrong:
        return [
            Problem(
                setting,
                None,
                f"{path} can't be read: {wrong.strerror}",
                "Change its permissions so that you can read it.",
            )
        ]
    if not has_image:
        return [Problem(setting, None, f"there is no image in {path}", "Choose the folder with the images.")]
    return []
