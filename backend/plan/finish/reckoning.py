"""Computes when a run will end from what a probe measured, and says it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import datetime

from backend.config.schema import Config
from backend.plan.finish.pace import Pace
from backend.runs.eta import spoken
from backend.runs.state_folder import STATE_EVERY_S

_DAY_S = 86400.0
# 49 epochs of 1/49 of a step are a step, and less than one in floating point.
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishTime:
    """How long a run takes from its start to its end, in seconds, by part."""

    steps: int
    step: float
    """Seconds of a step."""
    training: float
    starting: float
    """Before the first step, compiling, and the end of the process."""
    saves: float
    samples: float
    validations: float

    @property
    def seconds(self) -> float:
        """The whole."""
        return self.training + self.starting + self.saves + self.samples + self.validations

    def sentence(self, now: float | None = None) -> str:
        """When it ends, and what the time goes to. now: unix seconds at which it would start."""
        begin = time.time() if now is None else now
        end = datetime.fromtimestamp(begin + self.seconds)
        clock = f"{end:%H:%M}" if self.seconds < _DAY_S / 2 else f"{end:%a %d %b, %H:%M}"
        parts = [f"{spoken(self.training)} for {self.steps:,} steps of {self.step:.3g} s"]
        rest = {
            "samples": self.samples,
            "validation": self.validations,
            "saves": self.saves,
            "start and end": self.starting,
        }
        parts += [f"{spoken(seconds)} for {name}" for name, seconds in rest.items() if seconds >= 0.5]
        return f"About {spoken(self.seconds)}, to {clock} if it starts now: {', '.join(parts)}."


def finish_time(config: Config, pace: Pace, steps: int | None = None) -> FinishTime | None:
    """When a run of `config` ends by `pace`. steps: of the run, where the plan counted them.

    None where epochs decide the length and the probe's epochs have no steps.
    """
    training = config.training
    steps = training.step_limit if steps is None else steps
    if steps is None:
        if not pace.steps_per_epoch or training.max_train_epochs is None:
            return None
        steps = math.floor(training.max_train_epochs * pace.steps_per_epoch + _ROUNDING)
    saving, sampling, validation = config.saving, config.sampling, config.validation
    per_epoch = pace.steps_per_epoch
    saves = _times(steps, per_epoch, saving.save_every_n_steps, saving.save_every_n_epochs) + 1
    samples = _times(steps, per_epoch, sampling.sample_every_n_steps, sampling.sample_every_n_epochs)
    samples += sampling.sample_at_start + sampling.sample_at_end
    measured = _times(steps, per_epoch, validation.validate_every_n_steps, validation.validate_every_n_epochs)
    measured += validation.validate_at_start + validation.validate_at_end
    return FinishTime(
        steps=steps,
        step=pace.step,
        training=steps * pace.step,
        starting=pace.before + pace.warm_up + pace.after,
        saves=saves * pace.save + _states_in_time(steps * pace.step / saves) * saves * pace.state,
        samples=samples * pace.sample,
        validations=measured * pace.validation,
    )


def _states_in_time(seconds: float) -> int:
    """States that are saved between two saves that are so far apart, for what a crash may cost."""
    return math.floor(seconds / STATE_EVERY_S)


def cost_words(seconds: float, per_hour: float | None, per_kwh: float | None, watts: float | None) -> str:
    """What that time costs: at a price an hour, or for power of `watts` at a price a kWh; empty without prices."""
    sums = []
    if per_hour:
        sums.append(f"{seconds / 3600 * per_hour:.2f} at {per_hour:g} an hour")
    if per_kwh and watts:
        used = seconds / 3600 * watts / 1000
        sums.append(f"{used * per_kwh:.2f} for {used:.2f} kWh at {watts:g} W")
    return f"It costs {' and '.join(sums)}." if sums else ""


def comparison(expected: float, took: float) -> str:
    """How well a finish time was met."""
    percent = round(100 * (took / expected - 1)) if expected else 0
    return f"It took {spoken(took)}; the finish time before the start said {spoken(expected)} ({percent:+d} %)."


def _times(steps: int, per_epoch: float, every_steps: int | None, every_epochs: int | None) -> int:
    """How often something is due between the steps of a run; after its last one other rules hold."""
    between = max(0, steps - 1)
    times = between // every_steps if every_steps else 0
    if every_epochs and per_epoch:
        times += math.floor(between / per_epoch + _ROUNDING) // every_epochs
    return times
