"""Formats a tune for people and for the page: rows, a rich table, plain data, the choice in a sentence."""

from __future__ import annotations

from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from backend.config.schema import Config, by_path, get
from backend.plan.finish.machine import device_words
from backend.plan.memory.report import gigabytes, short_bytes
from backend.plan.tune.trials import WORTH, Trial, Tuned, block_classes, pareto, peak_of
from backend.runs.eta import spoken

_STATES = {"does_not_fit": "does not fit", "out_of_memory": "out of memory", "failed": "failed"}
_DATA_VERSION = 1


def sentence(tuned: Tuned) -> str:
    """What to take, and what it brings."""
    best, present = tuned.chosen, tuned.present if tuned.trials else None
    if best is None or best.finish is None:
        return "No candidate ran." if tuned.ended and tuned.trials else "Nothing is measured yet."
    took = spoken(best.seconds)
    if present is best:
        return f"The present settings are the best of those tried: they take {took}."
    if present is None or not present.ran:
        why = "" if present is None or not present.reason else f" ({_lower(present.reason).rstrip('.')})"
        return f"Best: {best.name}. It takes {took}; the present settings don't run{why}."
    percent = round(100 * (tuned.gain or 0.0))
    return f"Best: {best.name}. It takes {took} in place of {spoken(present.seconds)}, {percent} % less."


def caveats(tuned: Tuned) -> list[str]:
    """What else is to be known of the choice, a sentence each."""
    best, lines = tuned.chosen, []
    if best is not None and best.changes:
        lines.append(f"What is learnt changes: {'; '.join(best.changes)}.")
    front = pareto(tuned.trials)
    low, needed = (front[-1], peak_of(best)) if front and best is not None else (None, 0)
    if low is not None and peak_of(low) < (1 - WORTH) * needed:
        lines.append(f"Least memory: {low.name}, {gigabytes(peak_of(low))}, {spoken(low.seconds)}.")
    for each in block_classes(tuned.trials):
        gain = "" if each.speed_up is None else f", and makes a step {each.speed_up:.2f} times as fast"
        lines.append(f"Compiling {each.name} blocks takes {spoken(each.compiling)}{gain}.")
    if tuned.ended and tuned.why:
        lines.append(tuned.why)
    return lines


def changed(tuned: Tuned, config: Config) -> list[tuple[str, str, str]]:
    """(setting, value now, value of the choice) of all that the choice changes."""
    best = tuned.chosen
    if best is None:
        return []
    labels = by_path()
    return [(labels[path].label, str(get(config, path)), str(value)) for path, value in best.values.items()]


def tuned_dict(tuned: Tuned) -> dict[str, Any]:
    """A tune as plain data."""
    front = {trial.number for trial in pareto(tuned.trials)}
    best, present = tuned.chosen, tuned.trials[0].seconds if tuned.trials and tuned.trials[0].ran else None
    return {
        "version": _DATA_VERSION,
        "machine": device_words(),
        "text": sentence(tuned),
        "notes": caveats(tuned),
        "probes": tuned.probes,
        "planned": tuned.planned,
        "left": tuned.left,
        "ended": tuned.ended,
        "best": tuned.best,
        "gain": tuned.gain,
        "values": {} if best is None else dict(best.values),
        "classes": [
            {"name": each.name, "compiling": each.compiling, "speed_up": each.speed_up}
            for each in block_classes(tuned.trials)
        ],
        "trials": [_row(trial, present) | {"pareto": trial.number in front} for trial in tuned.trials],
    }


def _row(trial: Trial, present: float | None) -> dict[str, Any]:
    pace, finish = trial.pace, trial.finish
    seconds = None if finish is None else finish.seconds
    return {
        "number": trial.number,
        "name": trial.name,
        "factor": trial.factor,
        "values": dict(trial.values),
        "changes": list(trial.changes),
        "state": trial.state,
        "reason": trial.reason,
        "estimated": trial.estimated,
        "steps": None if finish is None else finish.steps,
        "step": None if finish is None else finish.step,
        "compiling": None if pace is None else pace.compiling,
        "compiled_anew": pace is not None and pace.compiled_anew,
        "attention": "" if pace is None else pace.attention,
        "peak": None if pace is None else pace.peak,
        "finish": seconds,
        "took": "" if seconds is None else spoken(seconds),
        "against": None if seconds is None or not present else seconds / present - 1,
    }


def render(tuned: Tuned) -> RenderableType:
    """The table for a terminal."""
    table = Table(title=f"Tuned on {device_words()}", title_justify="left")
    for name in ("", "Candidate", "s/step", "Compile", "Peak", "Finish", "Against now"):
        table.add_column(name, justify="left" if name in ("", "Candidate") else "right", overflow="fold")
    present = tuned.present.seconds if tuned.trials and tuned.present.ran else None
    for trial in sorted(tuned.trials, key=lambda trial: (trial.seconds, trial.number)):
        best = trial.number == tuned.best
        name = trial.name + (f" (changes: {'; '.join(trial.changes)})" if trial.changes else "")
        style = "bold green" if best else None if trial.ran else "dim"
        table.add_row("*" if best else str(trial.number), name, *_cells(trial, present), style=style)
    lines = [Text(sentence(tuned), style="bold"), *(Text(line) for line in caveats(tuned))]
    return Stack(table, *_reasons(tuned), *lines)


def _cells(trial: Trial, present: float | None) -> tuple[str, ...]:
    pace, finish = trial.pace, trial.finish
    if pace is None or finish is None:
        estimated = "" if trial.estimated is None else f"~ {short_bytes(trial.estimated)}"
        return ("", "", estimated, _STATES.get(trial.state, trial.state), "")
    against = "" if not present or not trial.number else f"{100 * (finish.seconds / present - 1):+.0f} %"
    peak = "" if pace.peak is None else short_bytes(pace.peak)
    return (f"{finish.step:.3g}", _compile_words(pace.compiling, pace.compiled_anew), peak,
            spoken(finish.seconds) + (" (known)" if trial.state == "reused" else ""), against)  # fmt: skip


def _compile_words(seconds: float, anew: bool) -> str:
    if not seconds:
        return "-"
    return spoken(seconds) + ("" if anew else " (cached)")


def _reasons(tuned: Tuned) -> list[Text]:
    return [Text(f"{trial.number} {trial.name}: {trial.reason}", style="dim") for trial in tuned.trials if trial.reason]


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]
