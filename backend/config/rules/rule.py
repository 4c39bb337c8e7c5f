"""Defines a rule between settings, and the kinds of rule that occur often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from backend.base.paths import resolve
from backend.base.problems import Problem, Severity
from backend.config.schema import Config, by_path, get
from backend.config.sections.training import step_limit

When = Literal["always", "start"]


@dataclass(frozen=True)
class Rule:
    """One rule between settings."""

    paths: tuple[str, ...]
    """The settings it reads; the problem is shown at the first."""
    broken: Callable[..., bool | list[int]]
    """From their values: whether the rule is broken, or the indexes of the rows that break it."""
    text: str
    """What is wrong, with the settings' values by name in braces."""
    remedy: str
    """What to do, with the same values."""
    severity: Severity = "error"
    when: When = "always"
    """``start`` rules apply to a run, not to a preset."""
    column: str = ""
    """Of the row, where rows break the rule."""

    def problems(self, cfg: Config) -> list[Problem]:
        """The problems of a config with this rule; empty when it is kept."""
        values = {path.rsplit(".", 1)[1]: get(cfg, path) for path in self.paths}
        broken = self.broken(*values.values())
        if not broken:
            return []
        shown = {name: value for name, value in values.items() if not isinstance(value, list | dict)}
        text, remedy = self.text.format(**shown), self.remedy.format(**shown)
        places = [f"[{row}]{self.column and '.' + self.column}" for row in broken] if isinstance(broken, list) else [""]
        return [Problem(self.paths[0] + place, None, text, remedy, self.severity) for place in places]


def no_effect(path: str, needs: str, values: tuple[Any, ...], because: str) -> Rule:
    """A warning when ``path`` was changed from its default although ``needs`` has none of these values."""
    name, default = path.rsplit(".", 1)[1], by_path()[path].default
    shown = " or ".join(str(v) for v in values)
    return Rule(
        (path, needs),
        lambda value, other: value != default and other not in values,
        f"{name} has no effect: {because}",
        f"Set {needs} to {shown}, or remove {name}",
        "warning",
    )


def longer_than_run(every: str, limit: str, unit: str, then: str) -> Rule:
    """A warning when something that happens every so many steps or epochs never does within the run."""
    name = every.rsplit(".", 1)[1]
    others = ("training.max_train_steps", "training.max_train_epochs")

    def broken(interval: int | None, steps: int | None, epochs: int | None) -> bool:
        length = step_limit(steps, epochs) if unit == "steps" else epochs
        return interval is not None and length is not None and interval > length

    return Rule(
        (every, *others),
        broken,
        f"{name} is longer than the run: {{{name}}} {unit}. {then}",
        f"Set it below {limit}, or leave it empty",
        "warning",
    )


def needs_pictures(path: str, or_trained: bool = False) -> Rule:
    """A warning when validation is set and there are no validation images.

    or_trained: also used for the loss of each training image.
    """
    name, default = path.rsplit(".", 1)[1], by_path()[path].default

    def broken(value: Any, split: float, folders: list[Any], trained: bool) -> bool:
        return value != default and not split and not folders and not (or_trained and trained)

    return Rule(
        (path, "dataset.validation_split", "validation.validation_folders", "validation.picture_losses"),
        broken,
        f"{name} has no effect: there are no validation images",
        "Set dataset.validation_split to 0.1, or add a row to validation.validation_folders",
        "warning",
    )


def refused_without_validation(path: str, only_with: tuple[str, ...] = ()) -> tuple[Rule, Rule]:
    """Errors where a run has to compare validations and measures none, or one alone at its end.

    only_with: settings without which this one has no effect.
    """
    name, default = path.rsplit(".", 1)[1], by_path()[path].default
    return (
        Rule(
            (path, "dataset.validation_split", "validation.validation_folders", *only_with),
            lambda value, split, folders, *others: (
                value != default and not split and not folders and None not in others
            ),
            f"{name} needs a validation loss, and there are no validation images",
            f"Set dataset.validation_split to 0.1, add a row to validation.validation_folders, or remove {name}",
            when="start",
        ),
        Rule(
            (path, "validation.validate_every_n_steps", "validation.validate_every_n_epochs", *only_with),
            lambda value, steps, epochs, *others: (
                value != default and steps is None and epochs is None and None not in others
            ),
            f"{name} compares validations, and none is made before the end of the run",
            f"Set validation.validate_every_n_steps or validation.validate_every_n_epochs, or remove {name}",
            when="start",
        ),
    )


def repeated(keys: list[str]) -> list[int]:
    """Indexes of the keys that an earlier one equals."""
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    return [index for index, key in enumerate(keys) if first[key] != index]


def folder_keys(rows: list[Any]) -> list[str]:
    """The folder of each row, resolved, for comparison."""
    return [str(resolve(row.path)) for row in rows]
