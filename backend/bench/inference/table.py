"""Keeps the rows of the inference bench as a CSV file, and makes its table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.base.files import write_atomic
from backend.bench.inference.scenes import SCENES
from backend.bench.markdown import markdown, shown
from backend.bench.record import text

FILE = "results.csv"
COLUMNS = (
    "size", "scene", "start", "ok", "error", "width", "height", "steps", "latency_s", "first_s", "load_s", "compile_s",
    "peak_gb", "estimated_gb", "graphs", "recompiles", "breaks", "cache_misses", "compiled", "pictures", "device",
    "torch", "commit", "date", "process_s", "blocks", "settings", "attention", "swap_s", "same", "frames",
)  # fmt: skip

Row = Mapping[str, str]


def read_rows(folder: Path) -> list[dict[str, str]]:
    """The rows in `folder`, oldest first; none where nothing is recorded yet."""
    try:
        with (folder / FILE).open(encoding="utf-8", newline="") as file:
            return [{name: row.get(name) or "" for name in COLUMNS} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []


def add_row(folder: Path, row: Mapping[str, Any]) -> None:
    """Add a row to the record in `folder`, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [*read_rows(folder), {name: text(row.get(name)) for name in COLUMNS}]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(folder / FILE, stream.getvalue())


def table(rows: Sequence[Row]) -> str:
    """The newest rows of each scene as a Markdown table: seconds a picture, peak, and what compiling took."""
    newest = {(row["scene"], row["start"]): row for row in rows}
    header = (
        "Scenario",
        "Eager",
        "Compiled",
        "Speedup",
        "Peak",
        "First, cold",
        "First, warm",
        "Compile",
    )
    plain = newest.get(("regional", "eager"))
    lines = []
    for name, scene in SCENES.items():
        mine = {start: newest.get((name, start)) for start in ("eager", "cold", "warm")}
        if not any(mine.values()):
            continue
        eager = mine["eager"] if scene.eager else plain
        fast = _first(mine["warm"], mine["cold"])
        before, after = _number(eager, "latency_s"), _number(fast, "latency_s")
        speedup = before / after if before and after else None
        peak = max((_number(row, "peak_gb") or 0.0 for row in (eager, fast) if row), default=0.0) or None
        cells = [scene.title, *(shown(each, 2, " s") for each in (before, after)), shown(speedup, 2, "x")]
        cells += [
            shown(peak, 1, " GB"),
            *(shown(_number(mine[start], "first_s"), 1, " s") for start in ("cold", "warm")),
        ]
        lines.append([*cells, shown(_number(mine["cold"], "compile_s"), 1, " s")])
    return markdown(header, lines)


def bars(rows: Sequence[Row]) -> list[str]:
    """A line for each figure that is to be reached, with what was measured; none for what was not."""
    newest = {(row["scene"], row["start"]): row for row in rows}
    eager, cold, warm = (newest.get(("regional", start)) for start in ("eager", "cold", "warm"))
    whole, swaps = newest.get(("whole", "cold")), newest.get(("swaps", "cold"))
    plain, fast = _number(eager, "latency_s"), _number(_first(warm, cold), "latency_s")
    own = _number(newest.get(("sdpa", "eager")), "latency_s")
    blocks, model = _number(cold, "compile_s"), _number(whole, "compile_s")
    begins, recompiles = _number(warm, "compile_s"), _number(swaps, "recompiles")
    lines = []
    if plain and fast:
        lines.append(f"compiled / eager: {plain / fast:.2f} times as fast (bar: 1.5)")
    if own and fast:
        lines.append(f"compiled / eager with torch's own attention: {own / fast:.2f} times as fast (bar: 1.5)")
    if blocks and model:
        lines.append(f"whole model / block by block: {model / blocks:.1f} times the compile time (bar: 6)")
    elif blocks and whole is not None and whole["process_s"]:
        most = float(whole["process_s"]) - (_number(cold, "process_s") or 0.0) + blocks
        lines.append(
            f"whole model / block by block: not compiled by {most / blocks:.1f} times the compile time (bar: 6)"
        )
    if begins is not None:
        lines.append(f"warm start: {begins:.2f} s of compiling (bar: 3)")
    if swaps is not None and recompiles is not None:
        same = "the same picture again" if swaps["same"] == "1" else "another picture afterwards"
        lines.append(
            f"LoRAs in turn: {recompiles:.0f} recompiles, {float(swaps['swap_s']):.2f} s each, {same} (bar: 0)"
        )
    return lines


def failures(rows: Sequence[Row]) -> list[str]:
    """A line for each row that could not be measured."""
    return [f"{row['scene']}, {row['start']}: {row['error']}" for row in rows if row["ok"] != "1"]


def _first(*rows: Row | None) -> Row | None:
    """The first of these that was measured."""
    return next((row for row in rows if row is not None and row["ok"] == "1"), None)


def _number(row: Row | None, name: str) -> float | None:
    return float(row[name]) if row is not None and row["ok"] == "1" and row[name] else None
