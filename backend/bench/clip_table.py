"""Writes the table of a video model's sizes: time, gain over eager and peak of each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from backend.bench.groups import Group, Row
from backend.bench.markdown import markdown

Sizes = dict[str, float]
"""Size of a clip, as in 832x480x81, -> what was measured of it, in the order of the stream."""


def clip_table(measured: Sequence[Group], same: Sequence[str]) -> str:
    """A table for each set of clip sizes that was measured; empty for a record of pictures.

    A cell is milliseconds a step, times eager, the step's peak and what was estimated of it; the exact variant has
    sizes of its own, which its cells name. same: settings that all rows share.
    """
    sets: dict[tuple[str, str], list[Group]] = {}
    for group in measured:
        if group.good and group.rows[0]["bucket_ms"]:
            sets.setdefault((group.rows[0]["size"], group.rows[0]["clips"]), []).append(group)
    return "".join(_table(groups, same) for groups in sets.values())


def _table(groups: Sequence[Group], same: Sequence[str]) -> str:
    plain = next((group for group in groups if group.plain), groups[0])
    names = list(sizes_of(plain, "bucket_ms"))
    lines = []
    for group in groups:
        eagers = [each for each in groups if each.plain and each.checkpointing is group.checkpointing]
        # Compared with eager of the same settings where it was measured, else with the plainest eager.
        eager = next((each for each in eagers if each.like == group.like), eagers[0] if eagers else None)
        seconds = sizes_of(group, "bucket_ms")
        bases = list(sizes_of(eager, "bucket_ms").values()) if eager else []
        peaks = list(sizes_of(group, "bucket_peak_gb").values())
        estimated = list(sizes_of(group, "bucket_estimated_gb").values())
        cells = []
        for at, (name, milliseconds) in enumerate(seconds.items()):
            parts = [f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds:.0f} ms"]
            parts += [f"{bases[at] / milliseconds:.2f} x"] if at < len(bases) else []
            parts += [_memory(peaks[at : at + 1], estimated[at : at + 1])] if at < len(peaks) else []
            parts += [name] if at < len(names) and name != names[at] else []
            cells.append(", ".join(parts))
        cells += ["-"] * (len(names) - len(cells))
        lines.append([group.name(same), "on" if group.checkpointing else "off", *cells])
    return "\n" + markdown(("variant", "checkpointing", *names), lines)


def _memory(peak: Sequence[float], estimated: Sequence[float]) -> str:
    """`14.6 GB`, with the estimate behind it where there is one."""
    measured = f"{peak[0]:.1f} GB"
    if not estimated:
        return measured
    return f"{measured} (estimated {estimated[0]:.1f}, {100 * (estimated[0] / peak[0] - 1):+.0f} %)"


def sizes_of(group: Group, column: str) -> Sizes:
    """Median over the repetitions of what a column holds for each size."""
    values: dict[str, list[float]] = {}
    for row in group.good:
        for name, value in read_sizes(row, column).items():
            values.setdefault(name, []).append(value)
    return {name: statistics.median(some) for name, some in values.items()}


def read_sizes(row: Row, column: str) -> Sizes:
    """A column such as ``832x480x81=1642.1 832x480x49=754.0`` of a row."""
    pairs = (part.partition("=") for part in row[column].split())
    return {name: float(value) for name, _, value in pairs}
