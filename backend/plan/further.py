"""Plans how a run is trained further than it was: its new length, and the learning rate that follows.

A run continues from its saved state, so only what may change there is changed: length and learning rate. A constant
schedule does not depend on the length, so that such a run ends as one that had the new length from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backend.base.errors import Refused
from backend.base.problems import errors
from backend.config.load import load, ready
from backend.config.schema import Config
from backend.plan.learning_rate import highest_rate, is_known, rate_factor, warmup_steps
from backend.runs.errors import RunBusy
from backend.runs.events import read_events
from backend.runs.events.kinds import PlanEvent, StepTotalEvent
from backend.runs.folder import Run
from backend.runs.state_folder import state_step

Schedule = Literal["stretch", "constant"]
SCHEDULES: dict[Schedule, str] = {
    "stretch": "the run's own schedule, over the new length",
    "constant": "a constant learning rate from here on",
}
"""Name -> what it means, for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a person wants: the length of the whole run, as steps or as epochs, and how the learning rate continues."""

    steps: int | None = None
    epochs: int | None = None
    schedule: Schedule = "stretch"
    learning_rate: float | None = None
    """The highest rate of the schedule; that of the run where None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far a run is, and what it was set to."""

    config: Config
    done: int
    """The step of the saved state that it continues from."""
    total: int | None
    """Steps that it was to have; None where no event says it."""
    steps_per_epoch: float | None

    @property
    def stretches(self) -> bool:
        """Whether its schedule can have another length; one of a class path keeps what its saved state holds."""
        return is_known(self.config.optimizer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Further:
    """A run's next part, checked."""

    standing: Standing
    config: Config
    """The run's settings with the changes."""
    overrides: dict[str, str]
    """The changes, as a command line has them."""
    total: int | None
    """Steps of the whole run; None where epochs rule and no plan tells how many steps they are."""

    def rate(self, step: int) -> float | None:
        """The learning rate at a step of the whole run; None where it can't be told."""
        before, total = self.standing.config.optimizer, self.standing.total
        cfg, length = (before, total) if step < self.standing.done else (self.config.optimizer, self.total)
        if not is_known(cfg) or length is None:
            return None
        return highest_rate(cfg) * rate_factor(cfg, step, length)

    def rates(self, points: int = 241) -> list[tuple[int, float | None]]:
        """(step, learning rate) over the whole run, past and to come; empty where its length is unknown."""
        if self.total is None:
            return []
        steps = dict.fromkeys(round(self.total * index / (points - 1)) for index in range(points))
        return [(step, self.rate(step)) for step in steps]

    def sentences(self) -> list[str]:
        """What a person should know before the start."""
        standing, cfg = self.standing, self.config.optimizer
        length = "" if self.total is None else f" of {self.total:,}"
        lines = [f"Continues after step {standing.done:,}{length}, exactly from the saved state."]
        now, then = self._last_rate(), self.rate(standing.done)
        if then is not None and now is not None:
            end = None if self.total is None else self.rate(self.total)
            lines.append(f"Learning rate: {now:.3g} until now, {then:.3g} from here" + _towards(then, end))
            if then > 1.5 * now:
                lines.append("It rises again: the schedule had fallen for the old length. A lower rate is gentler.")
        before = standing.config.optimizer
        if cfg.lr_scheduler == before.lr_scheduler == "constant" and highest_rate(cfg) == highest_rate(before):
            lines.append(
                "The schedule is constant: the result equals a run that had this length and warm-up from the start."
                if cfg.lr_warmup
                else "The schedule is constant: the result equals a run that had this length from the start."
            )
        return lines

    def _last_rate(self) -> float | None:
        """The rate of the last step that was made."""
        return self.rate(max(0, self.standing.done - 1))


def _towards(begin: float, end: float | None) -> str:
    return "." if end is None or end == begin else f", {end:.3g} at the end."


def standing_of(run: Run) -> Standing:
    """How far a run is.

    RunBusy while it is trained. Refused where its settings can't be used any more, and where it has no saved state: the
    remedy then says how a new run continues from its file.
    """
    if run.is_at_work():
        raise RunBusy(f"The run {run.name} is still being trained.", "Wait until it has ended, or stop it first.")
    loaded = load(run.config_path)
    if loaded.config is None:
        raise Refused.of(errors(loaded.problems))
    done = state_step(run.state_dir)
    if done is None:
        raise Refused(f"the run {run.name} has no saved state to continue from", _from_file(run, loaded.config))
    events, _ = read_events(run.events_path)
    totals = [event.total for event in events if isinstance(event, StepTotalEvent)]
    plans = [event.steps for event in events if isinstance(event, PlanEvent) and event.steps]
    return Standing(
        config=loaded.config,
        done=done,
        total=totals[-1] if totals else loaded.config.training.step_limit,
        steps_per_epoch=_steps_per_epoch(plans[-1]) if plans else None,
    )


def plan_further(run: Run, wish: Wish) -> Further:
    """Check what a person wants of a run. Refused, with the reason, where it can't be; RunBusy while it is trained."""
    standing = standing_of(run)
    overrides = {**_length(standing, wish), **_rate(standing, wish)}
    loaded = load(run.config_path, overrides)
    problems = [*loaded.problems, *(ready(loaded.config) if loaded.config is not None else [])]
    if loaded.config is None or errors(problems):
        raise Refused.of(errors(problems))
    return Further(standing=standing, config=loaded.config, overrides=overrides, total=_total(standing, wish))


LOST = (
    "the optimizer's momentum, and its averages of the gradients",
    "the place in the learning-rate schedule, which begins again with its warm-up",
    "the order of the pictures and the random numbers, which begin again",
    "the average of the weights (EMA), where the run keeps one",
    "the count of steps, the loss curve and the list of best steps, which begin again in a new run",
)
"""What a new run that continues from a file does not have of the run that made it."""


def from_file_changes(run: Run, config: Config) -> dict[str, str]:
    """Settings that let a new run continue from this run's newest file: the LoRA, or the whole model. Refused: none."""
    files = [file for file in run.checkpoints() if file.role != "average"]
    if config.training.kind == "full":
        files += run.model_folders()
    if not files:
        raise Refused(f"the run {run.name} has neither a saved state nor a file", "Start a new run of its settings.")
    name = "model.base_model" if config.training.kind == "full" else "network.network_weights"
    return {name: str(files[-1].path)}


def _from_file(run: Run, config: Config) -> str:
    try:
        ((name, path),) = from_file_changes(run, config).items()
    except Refused as nothing:
        return nothing.remedy
    short = name.rpartition(".")[2]
    lost = "; ".join(LOST)
    return (
        f'Start a new run from its newest file: launcher.py train "{run.config_path}" --{short} "{path}" '
        f"--max_train_steps N. It lacks {lost}."
    )


def _steps_per_epoch(plan: dict[str, object]) -> float | None:
    # runs of before several processes do not name their count
    parts = plan.get("batches_per_epoch"), plan.get("accumulation"), plan.get("processes", 1)
    batches, accumulation, processes = (part if isinstance(part, int) and part > 0 else None for part in parts)
    if batches is None or accumulation is None or processes is None:
        return None
    return batches / (accumulation * processes)


def _total(standing: Standing, wish: Wish) -> int | None:
    if wish.steps is not None:
        return wish.steps
    if wish.epochs is None or standing.steps_per_epoch is None:
        return None
    return int(wish.epochs * standing.steps_per_epoch + 1e-9)


def _length(standing: Standing, wish: Wish) -> dict[str, str]:
    if (wish.steps is None) == (wish.epochs is None):
        raise Refused("the new length is not given, or given twice", "Give the steps or the epochs of the whole run.")
    total = _total(standing, wish)
    if total is not None and total <= standing.done:
        word = f"{wish.epochs} epochs, {total:,} steps" if wish.steps is None else f"{total:,} steps"
        raise Refused(
            f"the run has done {standing.done:,} steps already, and its new length would be {word}",
            f"Give the length of the whole run: more than {standing.done:,} steps.",
        )
    steps, epochs = (str(each) if each is not None else "none" for each in (wish.steps, wish.epochs))
    return {"training.max_train_steps": steps, "training.max_train_epochs": epochs}


def _rate(standing: Standing, wish: Wish) -> dict[str, str]:
    cfg, changes = standing.config.optimizer, {}
    if wish.schedule not in SCHEDULES:
        raise Refused(f"{wish.schedule!r} is no way to continue", f"Choose one of {', '.join(SCHEDULES)}.")
    if wish.schedule == "stretch" and not standing.stretches:
        raise Refused(
            f"the schedule {cfg.lr_scheduler} keeps the length that its saved state holds",
            "Continue at a constant learning rate.",
        )
    if wish.schedule == "constant":
        changes["optimizer.lr_scheduler"] = "constant"
    if is_known(cfg) and 0 < cfg.lr_warmup < 1 and standing.total is not None:
        # a share of the new length would be a longer warm-up, which might even begin again
        changes["optimizer.lr_warmup"] = str(warmup_steps(cfg.lr_warmup, standing.total))
    if wish.learning_rate is not None:
        if "lr" in cfg.optimizer_args:
            remedy = "Leave the rate as it is, or take lr out of optimizer_args in the run's config.toml."
            raise Refused("optimizer_args holds the learning rate of this run", remedy)
        changes["optimizer.learning_rate"] = repr(wish.learning_rate)
    return changes


def ruled(rates: Sequence[tuple[int, float | None]], columns: int = 60) -> str:
    """The rates as a line of bars for a terminal; empty where they can't be told."""
    values = [rate for _, rate in rates if rate is not None]
    if len(values) != len(rates) or not values or not max(values):
        return ""
    bars = " ▁▂▃▄▅▆▇█"
    places = [values[round(index * (len(values) - 1) / (columns - 1))] for index in range(columns)]
    return "".join(bars[round(value / max(values) * (len(bars) - 1))] for value in places)
