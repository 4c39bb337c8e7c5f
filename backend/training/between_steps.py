"""Does what is due between two steps: saving, validation, samples, and waiting for a preview."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from backend.config.sections.sampling import SamplingSection
from backend.config.sections.saving import SavingSection
from backend.config.sections.validation import ValidationSection
from backend.runs.events import EventWriter
from backend.runs.events.kinds import ValidationEvent, WarningEvent
from backend.runs.events.validation import AverageEvent
from backend.runs.phase_progress import PhaseProgress
from backend.training.averaging import Averaging
from backend.training.follow_up import FollowUp
from backend.training.picture_losses import PictureLosses
from backend.training.position import CurrentPosition
from backend.training.requests import Requests
from backend.training.sampling import Interrupted
from backend.training.saver import Saver
from backend.training.step_log import StepLog
from backend.training.validation import Example, ValidationLoss
from backend.training.validation_history import Measurement

log = logging.getLogger(__name__)


def due(step: int, epochs_done: Iterable[int], every_steps: int | None, every_epochs: int | None) -> bool:
    """True when something is due after `step`, in which the epochs numbered `epochs_done` (from 1) ended."""
    by_step = every_steps is not None and step % every_steps == 0
    return by_step or (every_epochs is not None and any(epoch % every_epochs == 0 for epoch in epochs_done))


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationSet:
    """A validation set as it is read from the cache."""

    count: int
    """Pictures in it."""
    read: Callable[[], Iterable[Example]]
    trained: bool = False
    """Whether its pictures are trained, and measured for comparison."""
    identity: str = ""
    """Equal for losses that can be compared: of the same pictures, noise levels and noise."""


@dataclass(kw_only=True, slots=True)
class BetweenSteps:
    """Saves, validates and draws samples at the start, after each step and at the end of a run."""

    saving: SavingSection
    validation: ValidationSection
    sampling: SamplingSection
    position: CurrentPosition
    total_steps: int
    step_log: StepLog
    saver: Saver
    requests: Requests
    events: EventWriter
    validation_sets: Mapping[str, ValidationSet]
    """By their names."""
    measure: Callable[[Iterable[Example]], ValidationLoss]
    """The loss of a set; goes through it `passes` times."""
    draw_samples: Callable[[int], None] | None
    """Draws the samples of all prompts at a step; None without prompts."""
    passes: int = 1
    resume_training: Callable[[], None] = lambda: None
    """Called when something was done between two steps, and training continues."""
    note_requested_samples: Callable[[], None] = lambda: None
    """Called before samples that a person asked for are drawn."""
    to_use: Callable[[], AbstractContextManager[None]] = nullcontext
    """Holds the LoRA at the weights that are measured and drawn with, where these are not the trained ones."""
    follow_up: FollowUp | None = None
    """What is concluded from validations; None where there are none."""
    averaging: Averaging | None = None
    """Averages LoRA files at the end of the run, where that is set."""
    average: AverageEvent | None = None
    """What came of it."""
    leave: Callable[[], AbstractContextManager[None]] = nullcontext
    """Frees the device while a preview draws that asked the run to wait."""
    picture_losses: PictureLosses | None = None
    """Measures each training picture at the start, in the middle and at the end; None where that is off."""
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    """First and last validation loss of each set, by its name."""
    validated_at: int | None = None
    """The step of the last whole validation of this process."""
    _sampled_at: int | None = None

    @property
    def ends_early(self) -> bool:
        """Whether validations bring no gain any more, so that the run ends before its length."""
        return self.follow_up is not None and self.follow_up.early_stop is not None

    def at_start(self) -> None:
        """What is set for the time before the first step; of a run that continues, only what it missed."""
        if not self.position().is_start:
            if self.follow_up is not None:
                self.follow_up.resumed(self.position().step)
            if self.picture_losses is not None:
                self.picture_losses.at_start()
            return
        if self.validation.validate_at_start:
            self._validate()
        if self.picture_losses is not None:
            self.picture_losses.at_start()
        if self.sampling.sample_at_start:
            self._sample()

    def after_step(self, ended_epochs: Sequence[int]) -> None:
        """What is due after the step that was just counted: saving first, so that nothing after it can lose it.

        ended_epochs: numbers, from 1, of the epochs that ended in it.
        """
        saving, validation, sampling = self.saving, self.validation, self.sampling
        step = self.position().step
        if step >= self.total_steps:
            return
        acted = False
        by_plan = due(step, ended_epochs, saving.save_every_n_steps, saving.save_every_n_epochs)
        if self.requests.take("save") or by_plan or self.saver.owed:
            self.step_log.settle()
            self.saver.save()
            acted = True
        elif self.saver.state_is_old:
            self.step_log.settle()
            self.saver.save_state_in_time()
        if due(step, ended_epochs, validation.validate_every_n_steps, validation.validate_every_n_epochs):
            self._validate()
            acted = True
        if self.picture_losses is not None and self.picture_losses.after_step(step):
            acted = True
        requested = self.requests.take("sample")
        if requested or due(step, ended_epochs, sampling.sample_every_n_steps, sampling.sample_every_n_epochs):
            self._sample(requested)
            acted = True
        acted = self.requests.wait_while_paused(self.leave, self.events) or acted
        if acted:
            self.resume_training()

    def at_end(self) -> None:
        """Measure and draw with the finished LoRA, which is saved already.

        What was done at this step before an early stop is not done again.
        """
        step = self.position().step
        if self.validation.validate_at_end and self.validated_at != step:
            self._validate()
        if self.picture_losses is not None:
            self.picture_losses.at_end()
        requested = self.requests.take("sample")
        if (self.sampling.sample_at_end and self._sampled_at != step) or requested:
            self._sample(requested)
        if self.averaging is not None:
            self.average = self.averaging.at_end(self._held_out_loss)

    def _held_out_loss(self) -> float | None:
        """The validation loss of the LoRA as it is in the model now; None without validation sets."""
        sets = {(name, False): each for name, each in self.validation_sets.items() if not each.trained}
        losses = {key: self._measure(each).loss for key, each in sets.items()}
        return Measurement.of(self.position().step, losses).loss if losses else None

    def _validate(self) -> None:
        """Every validation set, until a stop is requested."""
        step, means = self.position().step, {}
        for name, examples in self.validation_sets.items():
            try:
                with self.to_use():
                    measured = self._measure(examples)
            except Interrupted:
                log.info("The validation of step %d was left out: the run was asked to stop", step)
                return
            sigmas = self.validation.validation_sigmas
            losses = {f"{sigma:g}": loss for sigma, loss in zip(sigmas, measured.sigma_losses, strict=True)}
            event = ValidationEvent(
                step=step,
                set=name,
                sigma_losses=losses,
                loss=measured.loss,
                trained=examples.trained,
                identity=examples.identity,
            )
            self.events.write(event)
            log.info("Validation %s at step %d: %.5f", name, step, measured.loss)
            self.losses.setdefault(name, {"first": measured.loss})["last"] = measured.loss
            means[name, examples.trained] = measured.loss
        self.validated_at = step
        if self.follow_up is not None and means:
            self.follow_up.after(step, means)

    def _measure(self, examples: ValidationSet) -> ValidationLoss:
        with PhaseProgress(self.events, "validate", examples.count * self.passes) as progress:
            return self.measure(_Counted(examples, self.requests, progress))

    def _sample(self, requested: bool = False) -> None:
        if self.draw_samples is not None:
            if requested:
                self.note_requested_samples()
            with self.to_use():
                self.draw_samples(self.position().step)
            self._sampled_at = self.position().step
        elif requested:
            text = "A sample was asked for, but there are no sample prompts"
            self.events.write(WarningEvent(text=text, remedy="Add a prompt on the Sampling tab before the next run."))


@dataclass(frozen=True, slots=True)
class _Counted:
    """The examples of a set, each counted once it is measured: when the next one is asked for. Interrupted by a stop.

    They can be gone through several times: each time they are read again.
    """

    examples: ValidationSet
    requests: Requests
    progress: PhaseProgress

    def __iter__(self) -> Iterator[Example]:
        for example in self.examples.read():
            if self.requests.stop:
                raise Interrupted
            yield example
            self.progress.advance()
