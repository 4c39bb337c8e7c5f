"""Compares runs: what differs in their settings, and what they came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backend.config.diff import diff, shown
from backend.config.load import load
from backend.config.schema import Config, settings
from backend.runs.eta import spoken
from backend.runs.folder import Run
from backend.runs.summary import Summary

FEWEST, MOST = 2, 6
"""Runs that can be compared at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of a table with a column a run."""

    label: str
    values: list[str]
    path: str = ""
    """The setting, where it is one."""
    best: int | None = None
    """The column that is best; None where none is, or where more or less is not better."""


def settings_of(run: Run) -> Config | None:
    """The settings of a run with all defaults, also where some can't be used any more; None without any."""
    loaded = load(run.config_path)
    return loaded.config or loaded.partial


def differing_settings(configs: Sequence[Config | None]) -> list[Row]:
    """The settings that are not the same in all runs, in the order of the form. A run without settings has "?"."""
    first = next((config for config in configs if config is not None), None)
    if first is None:
        return []
    rows: dict[str, tuple[str, list[str | None], str]] = {}
    for place, config in enumerate(configs):
        for change in diff(first, config) if config is not None else ():
            entry = rows.setdefault(change.path, (change.label, [None] * len(configs), shown(change.before)))
            entry[1][place] = shown(change.after)
    order = {setting.path: number for number, setting in enumerate(settings())}
    listed = [
        Row(
            label=label,
            path=path,
            values=[
                "?" if configs[place] is None else before if value is None else value
                for place, value in enumerate(values)
            ],
        )
        for path, (label, values, before) in rows.items()
    ]
    return sorted(listed, key=lambda row: order.get(row.path.partition("[")[0], 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to: `Summary`, with what its status says."""

    steps: int
    trained_s: float | None
    """Seconds of training, of all its processes."""
    summary: Summary


def results(outcomes: Sequence[Outcome]) -> list[Row]:
    """What the runs came to; lines that say nothing of any run are left out."""
    rows = [
        _row("Steps", outcomes, lambda each: f"{each.steps:,}"),
        _row("Final held-out loss", outcomes, lambda each: _point(each.summary.final)),
        _row("Best held-out loss", outcomes, lambda each: _point(each.summary.best), _lowest_loss),
        _row("Time of training", outcomes, lambda each: "" if not each.trained_s else spoken(each.trained_s)),
    ]
    numbers: list[tuple[str, Callable[[Summary], float | None], Callable[[float], str], bool]] = [
        ("Seconds a step", lambda summary: summary.s_per_step, lambda value: f"{value:.3g} s", True),
        ("Peak GPU memory", lambda summary: summary.vram_peak or None, _memory, True),
        ("Peak main memory", lambda summary: summary.ram_peak or None, _memory, True),
        ("Graphs", lambda summary: summary.graphs, lambda value: f"{value:g}", False),
        ("Compile seconds", lambda summary: summary.compile_seconds, lambda value: f"{value:.1f} s", True),
        (
            "Recompiles",
            lambda summary: summary.recompiles if summary.compiled else None,
            lambda value: f"{value:g}",
            True,
        ),
    ]
    rows += [_number_row(label, outcomes, *columns) for label, *columns in numbers]
    return [row for row in rows if any(row.values)]


def _number_row(
    label: str,
    outcomes: Sequence[Outcome],
    value: Callable[[Summary], float | None],
    text: Callable[[float], str],
    less_is_better: bool,
) -> Row:
    def words(outcome: Outcome) -> str:
        number = value(outcome.summary)
        return "" if number is None else text(number)

    return _row(label, outcomes, words, (lambda each: value(each.summary)) if less_is_better else None)


def _row(
    label: str,
    outcomes: Sequence[Outcome],
    text: Callable[[Outcome], str],
    less_is_better: Callable[[Outcome], float | None] | None = None,
) -> Row:
    best = None
    if less_is_better is not None:
        numbers = {place: less_is_better(each) for place, each in enumerate(outcomes)}
        known = {place: number for place, number in numbers.items() if number is not None}
        if len(set(known.values())) > 1:
            best = min(known, key=lambda place: known[place])
    return Row(label=label, values=[text(each) for each in outcomes], best=best)


def _lowest_loss(outcome: Outcome) -> float | None:
    point = outcome.summary.best
    return None if point is None else point[1]


def _point(point: tuple[int, float] | None) -> str:
    return "" if point is None else f"{point[1]:.5f} at step {point[0]:,}"


def _memory(size: float) -> str:
    return f"{size / 2**30:.2f} GB"
