"""Keeps the LoRA with the lowest validation loss as a file of its own, ``<name>-best.safetensors``.

The file says itself which loss it has and of what, so that a resumed run replaces it by a better one only, whatever was
trained and lost in between.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path

import safetensors

from backend.base.errors import Refused, WriteFailed
from backend.base.files import unused_path
from backend.runs.events.kinds import CheckpointEvent, WarningEvent
from backend.training.saved_files import WeightsNotFinite
from backend.training.saver import Saver
from backend.training.validation_history import Measurement

log = logging.getLogger(__name__)

LOSS, IDENTITY = "ss_validation_loss", "ss_validation_identity"
"""Names in the file's metadata of the loss, and of what it is a loss of."""


@dataclass(kw_only=True, slots=True)
class BestFile:
    """The file of the lowest validation loss."""

    saver: Saver
    identity: str
    """Equal for losses that can be compared."""
    loss: float = field(init=False)
    """Of the file that is there; infinite where there is none to compare with."""

    def __post_init__(self) -> None:
        self.loss = _loss_of(self.path, self.identity)

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.saver.run.checkpoints_dir / f"{self.saver.settings.output_name}-best.safetensors"

    @property
    def name(self) -> str | None:
        """Its path in the run's folder; None where there is no such file."""
        return self.path.relative_to(self.saver.run.path).as_posix() if self.path.is_file() else None

    def offer(self, measurement: Measurement) -> None:
        """Write the LoRA as it is now where its loss is lower than that of the file.

        A disk that refuses it costs a warning; the file of before then stays.
        """
        if not measurement.loss < self.loss:
            return
        try:
            if self.path.exists() and math.isinf(self.loss):
                # of other pictures or noise: its loss can't be compared, and it may be the better one
                self.path.rename(unused_path(self.path))
            with self.saver.to_use():
                more = {LOSS: repr(measurement.loss), IDENTITY: self.identity}
                self.saver.write_beside(self.path, measurement.step, more)
        except (OSError, WeightsNotFinite, Refused) as error:
            remedy = error.remedy if isinstance(error, WriteFailed) else "Training continues."
            text = f"The best LoRA so far, of step {measurement.step}, could not be saved: {error}"
            self.saver.events.write(WarningEvent(text=text, remedy=remedy))
            log.warning("%s", text)
            return
        self.loss = measurement.loss
        self.saver.events.write(CheckpointEvent(step=measurement.step, file=self.name or self.path.name, role="best"))


def _loss_of(path: Path, identity: str) -> float:
    """The validation loss that a LoRA file says it has; infinite where it says none that can be compared."""
    try:
        with safetensors.safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
        return float(metadata[LOSS]) if metadata.get(IDENTITY) == identity else math.inf
    except (OSError, KeyError, ValueError, safetensors.SafetensorError):
        return math.inf
