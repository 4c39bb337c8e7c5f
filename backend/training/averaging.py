"""Writes the average of several of a run's LoRA files at its end, and compares it by the validation loss."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from backend.base.files import unused_path
from backend.config.sections.saving import SavingSection
from backend.lora.average import STEPS, average
from backend.lora.inject import Lora
from backend.lora.load import continue_from, read_lora
from backend.runs.events.kinds import CheckpointEvent, WarningEvent
from backend.runs.events.validation import AverageEvent
from backend.runs.validation_words import average_words
from backend.training.sampling import Interrupted
from backend.training.saved_files import LoraFiles
from backend.training.saver import Saver
from backend.training.validation_history import ValidationHistory

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Averaging:
    """What is averaged at the end of a run, and how."""

    settings: SavingSection
    saver: Saver
    history: ValidationHistory | None
    """The run's validations; None where there are none."""

    def protected(self, steps: Iterable[int]) -> set[int]:
        """Of the steps with a file, those that an average of the best would take now: their files have to stay."""
        if self.settings.average_from != "best":
            return set()
        losses = self._losses()
        measured = sorted((step for step in steps if step in losses), key=lambda step: losses[step])
        return set(measured[: self.settings.average_checkpoints])

    def at_end(self, measure: Callable[[], float | None]) -> AverageEvent | None:
        """Write the average beside the finished LoRA, measure it, and put back what is trained; None without one.

        measure: the validation loss of the LoRA as it is in the model. Whatever fails here is a warning: the run's own
        result is saved.
        """
        try:
            files = self._files()
            if len(files) < 2:
                what = "best" if self.settings.average_from == "best" else "last"
                self._warn(
                    f"There is no average of the {what} LoRA files: the run has {len(files)} to take",
                    "Save more often (save_every_n_steps), or validate at the steps at which files are saved.",
                )
                return None
            return self._write(files, measure)
        except Exception as error:  # noqa: BLE001 - nothing after the last save may make a failure of a run
            self._warn(f"The average of LoRA files could not be made: {error}", "The finished LoRA is saved.")
            return None

    def _write(self, files: dict[int, Path], measure: Callable[[], float | None]) -> AverageEvent:
        saver, lora, files_of = self.saver, self.saver.weights, self.saver.files
        assert isinstance(lora, Lora) and isinstance(files_of, LoraFiles)
        step = saver.position().step
        before = _on_host(lora.tensors())
        path = unused_path(
            saver.run.checkpoints_dir / f"{self.settings.output_name}-step{step:08d}-average.safetensors"
        )
        try:
            states = []
            for file in files.values():
                continue_from(lora, read_lora(file, files_of.names))
                states.append(_on_host(lora.tensors()))
            mean = average(lora, states)
            lora.restore(mean.tensors)
            saver.write_beside(path, step, {STEPS: json.dumps(list(files))})
            name = path.relative_to(saver.run.path).as_posix()
            saver.events.write(CheckpointEvent(step=step, file=name, role="average"))
            loss = _measured(measure)
        finally:
            lora.restore(before)
        lowest = None if self.history is None else self.history.lowest
        event = AverageEvent(
            step=step,
            file=name,
            steps=list(files),
            error=mean.error,
            loss=loss,
            final_loss=self._losses().get(step),
            lowest_step=lowest and lowest.step,
            lowest_loss=lowest and lowest.loss,
        )
        saver.events.write(event)
        log.info("%s", average_words(event))
        return event

    def _files(self) -> dict[int, Path]:
        """Step -> file of what is averaged, by step; the finished LoRA is one of them.

        Files of steps that a run had done before it went back to an earlier state, and ended sooner, are not of it.
        """
        end = self.saver.position().step
        files = {step: path for step, path in self.saver.saved().items() if step <= end}
        if self.saver.final is not None and self.saver.final.is_file():
            files[end] = self.saver.final
        count = self.settings.average_checkpoints or 0
        if self.settings.average_from == "best":
            return {step: files[step] for step in sorted(self.protected(files))}
        return {step: files[step] for step in sorted(files)[-count:]}

    def _losses(self) -> dict[int, float]:
        """Validation loss by step, where it is finite."""
        measurements = [] if self.history is None else self.history.measurements
        return {each.step: each.loss for each in measurements if each.loss == each.loss}

    def _warn(self, text: str, remedy: str) -> None:
        self.saver.events.write(WarningEvent(text=text, remedy=remedy))
        log.warning("%s. %s", text, remedy)


def _measured(measure: Callable[[], float | None]) -> float | None:
    try:
        return measure()
    except Interrupted:
        log.info("The average was not measured: the run was asked to stop")
        return None


def _on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to("cpu", copy=True) for name, value in tensors.items()}
