"""What a run does between its steps: saving, measuring and drawing, when the settings or a person ask for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from backend.config.schema import Config
from backend.runs.events import EventWriter
from backend.runs.events.kinds import ValidationEvent, WarningEvent
from backend.runs.phase_progress import PhaseProgress
from backend.training.checkpoint import Position
from backend.training.requests import Asks
from backend.training.sampling import Interrupted
from backend.training.saver import Saver
from backend.training.step_log import StepRecords
from backend.training.validation import Example, Measured

log = logging.getLogger(__name__)


def due(step: int, epochs_done: Iterable[int], every_steps: int | None, every_epochs: int | None) -> bool:
    """True when something is due after `step`, in which the epochs numbered `epochs_done` (from 1) ended."""
    by_step = every_steps is not None and step % every_steps == 0
    return by_step or (every_epochs is not None and any(epoch % every_epochs == 0 for epoch in epochs_done))


@dataclass
class Duties:
    """validation: set -> its examples. measure: examples -> losses. draw: draws all prompts; None without prompts.

    asked: told before samples that a person asked for are drawn. back: told when something was done between two steps,
    and training goes on. to_use: holds the LoRA at the weights that are measured and drawn with, where these are not
    the trained ones. pictures: examples of each set, by its name.
    """

    cfg: Config
    position: Position
    total_steps: int
    records: StepRecords
    saver: Saver
    asks: Asks
    events: EventWriter
    validation: Mapping[str, Callable[[], Iterable[Example]]]
    measure: Callable[[Iterable[Example]], Measured]
    draw: Callable[[int], None] | None
    back: Callable[[], None] = lambda: None
    asked: Callable[[], None] = lambda: None
    to_use: Callable[[], AbstractContextManager[None]] = nullcontext
    pictures: Mapping[str, int] = field(default_factory=dict)
    measured: dict[str, dict[str, float]] = field(default_factory=dict)

    def at_start(self) -> None:
        """What is asked for before the first step; nothing when the run goes on from a state."""
        if self.position.step or self.position.micro:
            return
        if self.cfg.validation.validate_at_start:
            self._validate()
        if self.cfg.sampling.sample_at_start:
            self._sample()

    def after_step(self) -> None:
        """What is due after the step that was just counted: saving first, so that nothing after it can lose it."""
        saving, validation, sampling = self.cfg.saving, self.cfg.validation, self.cfg.sampling
        step, last = self.position.step, self.position.step >= self.total_steps
        ended = range(self.position.step_epoch + 1, self.position.epoch + 1)
        self.position.step_epoch = self.position.epoch
        if last:
            return
        acted = False
        by_plan = due(step, ended, saving.save_every_n_steps, saving.save_every_n_epochs)
        if self.asks.take("save") or by_plan or self.saver.owed:
            self.records.settle()
            self.saver.save()
            acted = True
        elif self.saver.state_is_old:
            self.records.settle()
            self.saver.save_state_in_time()
        if due(step, ended, validation.validate_every_n_steps, validation.validate_every_n_epochs):
            self._validate()
            acted = True
        asked = self.asks.take("sample")
        if asked or due(step, ended, sampling.sample_every_n_steps, sampling.sample_every_n_epochs):
            self._sample(asked)
            acted = True
        if acted:
            self.back()

    def at_end(self) -> None:
        """Measure and draw with the finished LoRA, which is saved already."""
        if self.cfg.validation.validate_at_end:
            self._validate()
        asked = self.asks.take("sample")
        if self.cfg.sampling.sample_at_end or asked:
            self._sample(asked)

    def _validate(self) -> None:
        """Every validation set, until a stop is asked for."""
        for name, examples in self.validation.items():
            try:
                with PhaseProgress(self.events, "validate", self.pictures.get(name)) as progress, self.to_use():
                    found = self.measure(self._counted(examples(), progress))
            except Interrupted:
                log.info("The validation of step %d was left out: the run was asked to stop", self.position.step)
                return
            sigmas = self.cfg.validation.validation_sigmas
            losses = {f"{sigma:g}": loss for sigma, loss in zip(sigmas, found.sigma_losses, strict=True)}
            self.events.write(ValidationEvent(step=self.position.step, set=name, sigma_losses=losses, loss=found.loss))
            log.info("Validation %s at step %d: %.5f", name, self.position.step, found.loss)
            self.measured.setdefault(name, {"first": found.loss})["last"] = found.loss

    def _counted(self, examples: Iterable[Example], progress: PhaseProgress) -> Iterator[Example]:
        """The examples, each told once it is measured: when the next one is asked for. Interrupted by a stop."""
        for example in examples:
            if self.asks.stop:
                raise Interrupted
            yield example
            progress.advance()

    def _sample(self, asked: bool = False) -> None:
        if self.draw is not None:
            if asked:
                self.asked()
            with self.to_use():
                self.draw(self.position.step)
        elif asked:
            text = "A sample was asked for, but there are no sample prompts"
            self.events.write(WarningEvent(text=text, remedy="Add a prompt on the Sampling tab before the next run."))
