"""Medians of a record's rows, and the table of each kind, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.bench.seed000 import TITLES

Row = dict[str, str]


@dataclass(frozen=True)
class Group:
    """All repetitions of one variant and setting."""

    variant: str
    checkpointing: bool
    rows: tuple[Row, ...]

    @property
    def good(self) -> list[Row]:
        return [row for row in self.rows if row["ok"] == "1"]

    def median(self, column: str, keep: Callable[[Row], bool] = lambda row: True) -> float | None:
        """Median of a column over the repetitions that measured it."""
        values = [float(row[column]) for row in self.good if row[column] and keep(row)]
        return statistics.median(values) if values else None

    def settings(self) -> str:
        """What differs from the bench's defaults, for the variant's name."""
        row = self.rows[0]
        words = []
        if row["compile_mode"] not in ("", "default"):
            words.append(row["compile_mode"])
        if row["memory_budget"]:
            words.append(f"memory budget {row['memory_budget']}")
        if row["lora_dtype"] not in ("", "fp32"):
            words.append(f"LoRA {row['lora_dtype']}")
        if row["checkpointing_kind"]:
            words.append(f"checkpointing {row['checkpointing_kind']}")
        if row["fused_lora"]:
            words.append("fused LoRA")
        if row["autocast"] == "0":
            words.append("no autocast")
        if row["captions"]:
            words.append(f"captions {row['captions'].replace(' ', ', ')}")
        if row["batch"] not in ("", "1"):
            words.append(f"batch {row['batch']}")
        return ", ".join(words)


_SETTINGS = ("compile_mode", "memory_budget", "lora_dtype", "autocast", "captions", "batch")
_KEY = ("variant", "checkpointing", "checkpointing_kind", "fused_lora", *_SETTINGS)


def groups(rows: Iterable[Row]) -> list[Group]:
    """Rows by variant and settings, in the order of their first row."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in _KEY), []).append(row)
    return [Group(key[0], key[1] == "1", tuple(members)) for key, members in found.items()]


def _shown(value: float | None, digits: int = 0, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    table = ["| " + " | ".join(header) + " |", "|" + "|".join([" --- ", *[" ---: "] * (len(header) - 1)]) + "|"]
    return "\n".join([*table, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def _compile_table(rows: list[Row]) -> str:
    found = groups(rows)
    eager = {g.checkpointing: g.median("s_per_step") for g in found if g.variant == "eager"}
    header = [
        "variant",
        "checkpointing",
        "ms a step",
        "times eager",
        "cold compile s",
        "warm compile s",
        "to step 100 s",
    ]
    header += ["peak GB", "graph GB", "graphs", "recompiles", "breaks", "syncs", "loss", "runs"]
    lines = []
    for group in found:
        name = group.variant + (f" ({group.settings()})" if group.settings() else "")
        if not group.good:
            lines.append(
                [name, "on" if group.checkpointing else "off", f"failed: {group.rows[-1]['error']}", *["-"] * 12]
            )
            continue
        seconds, base = group.median("s_per_step"), eager.get(group.checkpointing)
        times = None if seconds is None or base is None else base / seconds
        warm = group.median("compile_s", lambda row: row["cold"] == "0")
        lines.append(
            [
                name,
                "on" if group.checkpointing else "off",
                _shown(None if seconds is None else 1000 * seconds, 1 if seconds and seconds < 1 else 0),
                _shown(times, 2),
                _shown(group.median("compile_s", lambda row: row["cold"] == "1"), 1),
                _shown(warm, 1),
                _shown(group.median("step_100_s"), 1),
                _shown(group.median("peak_gb"), 2),
                _shown(group.median("graph_gb"), 2),
                *(_shown(group.median(column)) for column in ("graphs", "recompiles", "breaks", "syncs")),
                _shown(group.median("loss"), 4),
                str(len(group.good)),
            ]
        )
    return markdown(header, lines)


def _exactness_table(rows: list[Row]) -> str:
    header = ["route", "padded tokens", "output error", "of the unpadded run", "gradient error", "of the unpadded run"]
    lines = []
    for row in rows:
        if row["ok"] != "1":
            lines.append([row["variant"], f"failed: {row['error']}", *["-"] * 4])
            continue
        columns = ("output_error", "output_error_unpadded", "gradient_error", "gradient_error_unpadded")
        lines.append([row["variant"], row["padding"], *(f"{100 * float(row[column]):.3f} %" for column in columns)])
    return markdown(header, lines)


def _clock(seconds: float | None) -> str:
    return "-" if seconds is None else f"{int(seconds // 60)}:{round(seconds % 60):02d}"


def _seed000_table(rows: list[Row]) -> str:
    found = [group for group in groups(rows) if group.good]
    header = ["", *(TITLES.get(group.variant, group.variant) for group in found)]

    def line(title: str, value: Callable[[Group], Any]) -> list[str]:
        return [title, *(value(group) for group in found)]

    failed = [f"{TITLES.get(g.variant, g.variant)}: {g.rows[-1]['error']}" for g in groups(rows) if not g.good]
    table = markdown(
        header,
        [
            line("peak VRAM, GB", lambda g: _shown(g.median("peak_gb"), 1)),
            line("total time", lambda g: _clock(g.median("total_s"))),
            line("second half (after compile)", lambda g: _clock(g.median("second_half_s"))),
            line("train loss", lambda g: _shown(g.median("loss"), 3)),
            line("validation loss", lambda g: _shown(g.median("validation_loss"), 3)),
            line("graphs", lambda g: _shown(g.median("graphs"))),
            line("limit hits", lambda g: _shown(g.median("limit_hits"))),
        ],
    )
    return table + "".join(f"\nNot measured: {text}\n" for text in failed)


def render(rows: list[Row], kind: str) -> str:
    """The table of a record of `kind` (compile, exactness, seed000)."""
    return {"exactness": _exactness_table, "seed000": _seed000_table}.get(kind, _compile_table)(rows)
