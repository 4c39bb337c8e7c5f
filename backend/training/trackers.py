"""Writes each step's row: to the run's metrics, and where these are set to TensorBoard and Weights & Biases."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from backend.config.packages import load_problem
from backend.config.schema import Config
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.training.step_log import Row, WriteRow

log = logging.getLogger(__name__)

_SHOWN = ("loss", "loss_smooth", "lr", "grad_norm", "s_per_step", "vram_allocated", "graphs", "recompiles",
          "layers_scaled", "norm_mean", "norm_max")  # fmt: skip
_WANDB = "Weights & Biases"
_WAIT_S = 60
"""How long the end of a run waits until Weights & Biases has received everything."""


def row_writer(run: Run, metrics: MetricsWriter, cfg: Config, stack: ExitStack) -> WriteRow:
    """Writes rows to `metrics` and to the trackers that ``[logging]`` names. stack: closes these at the run's end."""
    trackers: list[_Tracker] = []
    if cfg.logging.tensorboard:
        trackers.append(_tensorboard(run))
    if cfg.logging.wandb:
        trackers += _wandb(run, cfg)
    for tracker in trackers:
        stack.callback(tracker.close)
    if not trackers:
        return lambda step, row: metrics.add(step, **row)

    def write(step: int, row: Row) -> None:
        metrics.add(step, **row)
        values = {name: value for name in _SHOWN if (value := row.get(name)) is not None}
        for tracker in trackers:
            tracker.add(step, values)

    return write


class _Tracker:
    """A record for other programs; what it fails of, a full disk or a lost network, never costs the training."""

    def __init__(self, name: str, add: Callable[[int, Row], object], close: Callable[[], object]) -> None:
        self._name = name
        self._add: Callable[[int, Row], object] | None = add
        self._close = close

    def add(self, step: int, values: Row) -> None:
        """Pass a step's numbers on; nothing any more once that has failed."""
        try:
            if self._add is not None:
                self._add(step, values)
        except Exception as error:  # noqa: BLE001 - it passes on whatever its writing thread died of
            self._give_up(error)

    def close(self) -> None:
        """Write what is left, and end."""
        try:
            if self._add is not None:
                self._close()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._add = None
        log.warning("No more numbers of this run go to %s: %s. Training continues.", self._name, error)


def _tensorboard(run: Run) -> _Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(run.path / "tensorboard")

    def add(step: int, values: Row) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return _Tracker("TensorBoard", add, writer.close)


def _wandb(run: Run, cfg: Config) -> list[_Tracker]:
    """Through accelerate's tracker; none where it could not begin, which the log then tells.

    Its files lie in the run's folder. The key is read by wandb itself, from its login or the environment, and is passed
    through nothing of ours.
    """
    from accelerate.tracking import WandBTracker

    if problem := load_problem("wandb"):
        log.warning("%s can't be used: the package wandb %s. Training continues without it.", _WANDB, problem)
        return []
    offline = cfg.logging.wandb_mode == "offline"
    name = run.path.name
    try:
        # a resume continues what the run has there; a folder's name holds the time it was made at
        again: dict[str, Any] = {"mode": "offline"} if offline else {"resume": "allow"}
        tracker = WandBTracker(
            cfg.logging.wandb_project,
            name=cfg.logging.wandb_run_name or name,
            id=re.sub(r"[^A-Za-z0-9._-]", "-", name)[-120:],
            entity=cfg.logging.wandb_entity,
            dir=str(run.path),
            settings=_settings(),
            **again,
        )
        tracker.start()
        tracker.store_init_configuration(cfg.model_dump(mode="json"))
    except Exception as error:  # noqa: BLE001 - a server out of reach, a key that is refused
        log.warning("%s can't be used: %s. Training continues without it.", _WANDB, error)
        return []
    if offline:
        log.info("%s: offline. Send the run later with  wandb sync %s", _WANDB, Path(tracker.run.dir).parent)
    else:
        log.info("%s: %s", _WANDB, tracker.run.url)
    return [_Tracker(_WANDB, lambda step, values: tracker.log(dict(values), step=step), tracker.finish)]


def _settings() -> Any:
    """wandb without what a run's own log has, code and git; what this version does not know is left out."""
    # Optional, so that no requirements file pins it; `load_problem` has imported it.
    known = sys.modules["wandb"].Settings
    wanted: dict[str, Any] = {
        "console": "off",
        "quiet": True,
        "save_code": False,
        "disable_code": True,
        "disable_git": True,
        # names of computer and person, the command, its folder, what is installed
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        "init_timeout": float(_WAIT_S),
        "finish_timeout": float(_WAIT_S),
        "finish_timeout_raises": True,
    }
    return known(**{name: value for name, value in wanted.items() if name in known.model_fields})
