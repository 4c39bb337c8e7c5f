"""Checks before the first step whether a run can be saved: all that is trained has a name in files, and room there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.base.errors import Refused
from backend.base.files import free_bytes, human_bytes
from backend.base.problems import Problem
from backend.config.experts import turns_of
from backend.plan.memory.optimizer_bytes import FLOAT, rows_and_columns, state_bytes
from backend.runs.state_folder import replaceable_bytes

if TYPE_CHECKING:
    from backend.config.schema import Config
    from backend.optimizers.trained_weights import TrainedWeights
    from backend.runs.folder import Run
    from backend.training.saved_files import SavedFiles

log = logging.getLogger(__name__)

_HALF = 2
"""Bytes of a number in bf16."""


def save_problems(
    run: Run, cfg: Config, weights: TrainedWeights, files: SavedFiles, more: Sequence[tuple[int, ...]] = ()
) -> list[Problem]:
    """An error where one file and one state have no room with what is kept, a warning where two states haven't.

    more: shapes of what is trained besides `weights`. Refused when no file can be written in the settings' layout.
    """
    try:
        file = files.bytes()
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - found now it costs nothing, and all training at the first save
        name = "model_layout" if cfg.training.kind == "full" else "save_layout"
        raise Refused(
            f"The {files.noun} can't be written with {name} {getattr(cfg.saving, name)}: "
            f"{type(error).__name__} {error}",
            f"Choose another {name}, or take the layer that it names out of targets_include.",
            f"saving.{name}",
        ) from error
    # of two experts each has a file, and its part of the state
    times, what = (1, f"a {files.noun} file") if turns_of(cfg) is None else (2, f"two {files.noun} files")
    return room_problems(
        run, times * file, times * _state_bytes(cfg, weights, more) if cfg.saving.save_state else 0, what
    )


def room_problems(run: Run, file: int, state: int, what: str = "a LoRA file") -> list[Problem]:
    """What lacks room on the disk of `run`. file, state: bytes of `what` and of a state, 0 where none is kept."""
    free = free_bytes(run.path)
    if free is None:
        return []
    try:
        # with too little room for a third state the oldest gives way
        room = free + (replaceable_bytes(run.state_dir) if state else 0)
    except OSError as error:
        log.warning("The room on the disk is not known: %s", error)
        return []
    what = f"{what} of {human_bytes(file)}" + (f" and a resume state of {human_bytes(state)}" if state else "")
    if file + state > room:
        text = f"The run could not be saved: {what} are needed, and {human_bytes(room)} are free in {run.path.parent}"
        return [Problem("saving.output_dir", None, text, "Free some space, or choose a folder on another disk.")]
    if file + 2 * state > room:
        text = f"The disk of {run.path.parent} has room for one resume state of {human_bytes(state)}, and not for two"
        remedy = "The run starts; should that state be damaged, there is none before it. Free some space."
        return [Problem("saving.output_dir", None, text, remedy, "warning")]
    return []


def _state_bytes(cfg: Config, weights: TrainedWeights, more: Sequence[tuple[int, ...]]) -> int:
    shapes = [rows_and_columns(shape) for shape in (*(tuple(part.shape) for part in weights.parameters()), *more)]
    count = sum(rows * columns for rows, columns in shapes)
    # of a whole model as they are trained, of a LoRA always in float32; so is a mean
    half = cfg.training.kind == "full" and cfg.training.full_weight_dtype == "bf16"
    numbers = count * (_HALF if half else FLOAT) + (count * FLOAT if cfg.training.ema else 0)
    optimizer = state_bytes(cfg.optimizer.optimizer, shapes, cfg.optimizer.optimizer_args).total
    return numbers + optimizer
