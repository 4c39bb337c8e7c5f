"""Computes medians of a record's rows, and writes the table of each kind as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.bench.clip_table import clip_table
from backend.bench.groups import Group, Row, groups
from backend.bench.markdown import markdown, shown
from backend.bench.products_table import products_table
from backend.bench.profile import GROUPS, PARTS
from backend.bench.profile import read as read_parts
from backend.bench.published import others
from backend.bench.record import default_of, words
from backend.bench.seed000 import TITLES
from backend.bench.sizes import SIZES
from backend.bench.variants import PRODUCTS, SETTINGS, VARIANTS


def common(rows: Sequence[Row]) -> list[str]:
    """Settings that all rows share: said once, not in every name."""
    return [name for name in SETTINGS if len({row[name] or default_of(name) for row in rows}) == 1]


def shared(rows: Sequence[Row]) -> str:
    """What all rows share, in words: size, blocks, rank, batch, steps, and what is not the bench's default."""
    if not rows:
        return ""
    row, same = rows[0], common(rows)
    parts = [f"size {row['size']}"] if "size" in same else []
    if "layers" in same:
        layers = row["layers"].split() or [str(n) for n in SIZES[row["size"]].layers] if row["size"] in SIZES else []
        parts += [f"{' + '.join(layers)} blocks"] if layers else []
    parts += [f"{word} {row[name] or default_of(name)}" for name, word in _ALWAYS.items() if name in same]
    parts += [f"{row['steps'] or default_of('steps')} timed steps"] if "steps" in same else []
    left = words(row, [*(name for name in SETTINGS if name not in same), "layers", "steps", *_ALWAYS])
    return ", ".join([*parts, left] if left else parts)


def lacking(rows: Sequence[Row]) -> list[str]:
    """Why the families of the rows' sizes have no row of some shape mode, a line each."""
    sizes = [SIZES[name] for name in dict.fromkeys(row["size"] for row in rows) if name in SIZES]
    modes = dict.fromkeys(each.mode for each in VARIANTS.values())
    return [size.lacks(mode) for size in sizes for mode in modes if size.lacks(mode)]


_ALWAYS = {"rank": "rank", "batch": "batch"}


_HEADER = (
    "variant",
    "checkpointing",
    "ms a step",
    "times eager",
    "cold compile s",
    "warm compile s",
    "to step 100 s",
    "peak GB",
    "graph GB",
    "graphs",
    "recompiles",
    "breaks",
    "syncs",
    "loss",
    "runs",
)


def _compile_table(rows: list[Row]) -> str:
    measured, same = groups(rows), common(rows)
    pooled: dict[tuple[bool, tuple[str, ...]], list[Row]] = {}
    for group in measured:
        if group.plain:
            pooled.setdefault((group.checkpointing, group.like), []).extend(group.rows)
    eager = {key: Group("eager", key[0], tuple(members)).median("s_per_step") for key, members in pooled.items()}
    lines = []
    for group in measured:
        name = group.name(same)
        checkpointing = "on" if group.checkpointing else "off"
        if not group.good:
            failed = f"failed: {group.rows[-1]['error']}"
            lines.append([name, checkpointing, failed, *["-"] * (len(_HEADER) - 3)])
            continue
        seconds = group.median("s_per_step")
        # Compared with eager of the same settings where it was measured, else with the plainest eager.
        plainest = next((base for (kind, _), base in eager.items() if kind == group.checkpointing), None)
        base = eager.get((group.checkpointing, group.like), plainest)
        times = None if seconds is None or base is None else base / seconds
        lines.append(
            [
                name,
                checkpointing,
                shown(None if seconds is None else 1000 * seconds, 1 if seconds and seconds < 1 else 0),
                shown(times, 2),
                shown(group.median("compile_s", lambda row: row["cold"] == "1"), 1),
                shown(group.median("compile_s", lambda row: row["cold"] == "0"), 1),
                shown(group.median("step_100_s"), 1),
                shown(group.median("peak_gb"), 2),
                shown(group.median("graph_gb"), 2),
                _graphs(group),
                *(shown(group.median(column)) for column in ("recompiles", "breaks", "syncs")),
                shown(group.median("loss"), 4),
                str(len(group.good)),
            ]
        )
    more = clip_table(measured, same) + products_table(measured, same) + swap_table(measured, same)
    more += profile_table(measured, same) + compile_table(measured, same)
    return markdown(_HEADER, lines) + more + others(measured)


def _graphs(group: Group) -> str:
    """Observed graphs, and the planned ones where they were counted."""
    planned = group.median("planned_graphs")
    return shown(group.median("graphs")) + ("" if planned is None else f" of {planned:.0f}")


def swap_table(measured: Sequence[Group], same: Sequence[str]) -> str:
    """What streaming blocks costs compared with the physical limit, for rows that swap; else empty.

    The limit is what the transfers of a step take by themselves at the measured rate.
    """
    rows = [group for group in measured if group.good and group.median("swap_gb")]
    if not rows:
        return ""
    # Compared with the same work with all weights on the GPU.
    unswapped = {group.unswapped: group.median("s_per_step") for group in measured if not group.median("swap_gb")}
    lines = []
    for group in rows:
        seconds, base = group.median("s_per_step"), unswapped.get(group.unswapped)
        lines.append(
            [
                group.name(same),
                "on" if group.checkpointing else "off",
                shown(group.median("swap_gb"), 1),
                shown(group.median("h2d_gb_s"), 1),
                shown(group.median("swap_limit_ms")),
                shown(group.median("swap_wait_ms")),
                shown(None if seconds is None else 1000 * seconds),
                shown(None if seconds is None or not base else seconds / base, 2),
                shown(group.median("peak_gb"), 2),
            ]
        )
    return "\n" + markdown(_SWAP_HEADER, lines)


_SWAP_HEADER = (
    "swapped",
    "checkpointing",
    "swapped GB",
    "host to device GB/s",
    "limit ms",
    "waited ms",
    "ms a step",
    "times unswapped",
    "peak GB",
)


def profile_table(measured: Sequence[Group], same: Sequence[str]) -> str:
    """Where a step's milliseconds go, a line for each profiled variant; empty where none was."""
    rows = {_with_checkpointing(group, same): _first(group, "profile_ms", ("0", "1")) for group in measured}
    return _parts_table("ms of a step", GROUPS, rows)


def compile_table(measured: Sequence[Group], same: Sequence[str]) -> str:
    """What the seconds of compiling went to, a line for each variant, cold and warm; empty where that is not known."""
    rows = {
        f"{_with_checkpointing(group, same)}, {title}": _first(group, "compile_parts", (cold,))
        for group in measured
        for title, cold in (("cold", "1"), ("warm", "0"))
    }
    return _parts_table("seconds of compiling", PARTS, rows)


def _with_checkpointing(group: Group, same: Sequence[str]) -> str:
    return f"{group.name(same)}, checkpointing {'on' if group.checkpointing else 'off'}"


def _first(group: Group, column: str, cold: Sequence[str]) -> str:
    """The column of the group's first row that has it, of a cold start (1) or a warm one (0)."""
    return next((row[column] for row in group.good if row[column] and row["cold"] in cold), "")


def _parts_table(title: str, names: Sequence[str], rows: Mapping[str, str]) -> str:
    """A line of parts and their sum for each row that has any."""
    lines = []
    for name, text in rows.items():
        if text:
            parts = read_parts(text)
            lines.append([name, *(shown(parts.get(part, 0.0), 1) for part in names), shown(sum(parts.values()), 1)])
    return "\n" + markdown([title, *names, "all"], lines) if lines else ""


_CURVE_STEPS = 100


def loss_table(losses: list[Row]) -> str:
    """Loss of each variant compared with eager's, step by step, for records of at least 100 steps; else empty.

    8-bit products are compared with bf16 of the same variant, where the record has it.
    The noise is how far two eager runs, or two runs of one variant, differ from each other.
    """
    curves = loss_curves(losses)
    if not curves or max(map(len, curves.values())) < _CURVE_STEPS:
        return ""
    firsts = {key[:3]: curve for key, curve in reversed(curves.items())}
    header = [
        "variant",
        "checkpointing",
        "mean loss",
        "mean loss, last 50",
        "to eager, or bf16",
        "mean difference a step",
        "noise",
    ]
    lines = []
    for (variant, checkpointing, settings), curve in reversed(firsts.items()):
        eager = [c for key, c in firsts.items() if key[:2] == ("eager", checkpointing)]
        base = firsts.get((variant, checkpointing, _without_products(settings))) if "products" in settings else None
        base = base or firsts.get(("eager", checkpointing, settings)) or (eager[-1] if eager else None)
        title = ", ".join(word for word in settings.split(", ") if word and not word.endswith(" steps"))
        again = [c for key, c in curves.items() if key[:3] == (variant, checkpointing, settings)][1:]
        noise = max((_apart(curve, other) for other in again), default=None)
        change = None if base is None else 100 * (statistics.fmean(curve) / statistics.fmean(base) - 1)
        lines.append(
            [
                f"{variant} ({title})" if title else variant,
                "on" if checkpointing == "1" else "off",
                f"{statistics.fmean(curve):.5f}",
                f"{statistics.fmean(curve[-50:]):.5f}",
                "-" if change is None else f"{change:+.3f} %",
                "-" if base is None else f"{_apart(curve, base):.5f}",
                shown(noise, 5),
            ]
        )
    return "\n" + markdown(header, lines)


def loss_curves(losses: list[Row]) -> dict[tuple[str, str, str, str], list[float]]:
    """Loss a step of each run of a record, by variant, checkpointing, settings and repetition, in order."""
    curves: dict[tuple[str, str, str, str], list[float]] = {}
    for row in losses:
        key = (row["variant"], row["checkpointing"], row["settings"], row["repeat"])
        curves.setdefault(key, []).append(float(row["loss"]))
    return curves


def _without_products(settings: str) -> str:
    """Words of a row's settings without those of 8-bit products."""
    return ", ".join(word for word in settings.split(", ") if "products" not in word and word not in PRODUCTS)


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=False))


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
    measured = [group for group in groups(rows) if group.good]
    header = ["", *(TITLES.get(group.variant, group.variant) for group in measured)]

    def line(title: str, value: Callable[[Group], Any]) -> list[str]:
        return [title, *(value(group) for group in measured)]

    failed = [f"{TITLES.get(g.variant, g.variant)}: {g.rows[-1]['error']}" for g in groups(rows) if not g.good]
    table = markdown(
        header,
        [
            line("peak VRAM, GB", lambda g: shown(g.median("peak_gb"), 1)),
            line("total time", lambda g: _clock(g.median("total_s"))),
            line("second half (after compile)", lambda g: _clock(g.median("second_half_s"))),
            line("train loss", lambda g: shown(g.median("loss"), 3)),
            line("validation loss", lambda g: shown(g.median("validation_loss"), 3)),
            line("graphs", lambda g: shown(g.median("graphs"))),
            line("limit hits", lambda g: shown(g.median("limit_hits"))),
        ],
    )
    return table + "".join(f"\nNot measured: {text}\n" for text in failed)


def render(rows: list[Row], kind: str) -> str:
    """The table of a record of `kind`; empty for loss, whose table is of its losses."""
    if kind == "loss":
        return ""
    return {"exactness": _exactness_table, "seed000": _seed000_table}.get(kind, _compile_table)(rows)
