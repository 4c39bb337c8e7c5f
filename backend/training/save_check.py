"""Checks before the first step whether a run can be saved: each layer has a name in files, and the disk has room."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from backend.base.errors import Refused
from backend.base.files import free_bytes, human_bytes
from backend.base.problems import Problem
from backend.lora.comfyui_keys import LayerNames
from backend.lora.save import file_tensors
from backend.plan.memory.optimizer_bytes import FLOAT, state_bytes
from backend.runs.state_folder import replaceable_bytes

if TYPE_CHECKING:
    from backend.config.schema import Config
    from backend.lora.inject import Lora
    from backend.runs.folder import Run

log = logging.getLogger(__name__)


def save_problems(run: Run, cfg: Config, lora: Lora, names: LayerNames) -> list[Problem]:
    """An error where one LoRA file and one state have no room with what is kept, a warning where two states haven't.

    Refused when the LoRA can't be written in the layout of the settings.
    """
    try:
        tensors = file_tensors(lora, cfg.saving.save_precision, names, cfg.saving.save_layout)
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - found now it costs nothing, and all training at the first save
        raise Refused(
            f"The LoRA can't be written in the layout {cfg.saving.save_layout}: {type(error).__name__} {error}",
            "Choose another save_layout, or take the layer that it names out of targets_include.",
            "saving.save_layout",
        ) from error
    file = sum(tensor.nbytes for tensor in tensors.values())
    return room_problems(run, file, _state_bytes(cfg, lora) if cfg.saving.save_state else 0)


def room_problems(run: Run, file: int, state: int) -> list[Problem]:
    """What lacks room on the disk of `run`. file, state: bytes of a LoRA file and of a state, 0 where none is kept."""
    free = free_bytes(run.path)
    if free is None:
        return []
    try:
        # with too little room for a third state the oldest gives way
        room = free + (replaceable_bytes(run.state_dir) if state else 0)
    except OSError as error:
        log.warning("The room on the disk is not known: %s", error)
        return []
    what = f"a LoRA file of {human_bytes(file)}" + (f" and a resume state of {human_bytes(state)}" if state else "")
    if file + state > room:
        text = f"The run could not be saved: {what} are needed, and {human_bytes(room)} are free in {run.path.parent}"
        return [Problem("saving.output_dir", None, text, "Free some space, or choose a folder on another disk.")]
    if file + 2 * state > room:
        text = f"The disk of {run.path.parent} has room for one resume state of {human_bytes(state)}, and not for two"
        remedy = "The run starts; should that state be damaged, there is none before it. Free some space."
        return [Problem("saving.output_dir", None, text, remedy, "warning")]
    return []


def _state_bytes(cfg: Config, lora: Lora) -> int:
    shapes = [(part.shape[0], part[0].numel()) for part in lora.parameters()]
    weights = sum(rows * columns for rows, columns in shapes) * FLOAT
    optimizer = state_bytes(cfg.optimizer.optimizer, shapes, cfg.optimizer.optimizer_args).total
    return weights * (2 if cfg.training.ema else 1) + optimizer
