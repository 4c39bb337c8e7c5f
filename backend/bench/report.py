"""Makes docs/benchmarks.md and its plots from the records under docs/benchmarks/ and from nothing else.

    python -m backend.bench.report [--check]

A test compares the committed files with what this writes. Text (what was tried and why) comes from
docs/benchmarks/notes.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from backend.base.files import write_atomic
from backend.bench.groups import groups
from backend.bench.record import read_losses, read_rows
from backend.bench.table import common, lacking, loss_curves, loss_table, render, shared

DOCS = Path(__file__).parents[2] / "docs"

_TITLES = {"compile": "Steps", "loss": "Losses", "exactness": "Exactness", "seed000": "The protocol seed000"}
_ABOUT = {
    "compile": "Median of the repetitions. Every variant trains the same stream of batches, one bucket after another; "
    "the first pass over the buckets warms up and is not timed. Recompiles are graphs made after it that the shape "
    "plan does not count; the planned number follows the observed one, as in 2 of 2. Cold is the first process, with "
    "an empty cache; warm are the later ones. Graph GB is device memory outside of torch's allocator.",
    "loss": "Losses alone: the processes ran side by side, so their times are not comparable.",
    "exactness": "Root mean square error against an unpadded float32 run, relative to that run's size. Padding is "
    "exact when the padded error is not larger than that of the unpadded bf16 run in the same row.",
    "seed000": "r 32, learning rate 5e-5, batch 2, 182 steps, seed 42, gradient checkpointing, random weights and "
    "images. Validation: held-out images at sigma 0.05, 0.1, 0.2, 0.35 with fixed noise.",
}
_ABOUT_LOSS = (
    "Every variant's loss compared with eager's, on the same batches, noise and weights. Mean difference: of the two "
    "losses of a step, in size. Noise: the same between two runs of one variant.\n"
)

_Bar = tuple[str, float, bool]


def records(folder: Path) -> list[tuple[str, dict[str, Any], list[dict[str, str]]]]:
    """(name, meta, rows) of every record under `folder`, by name."""
    rows_of = []
    for meta in sorted(folder.glob("*/meta.json")):
        rows_of.append((meta.parent.name, json.loads(meta.read_text(encoding="utf-8")), read_rows(meta.parent)))
    return rows_of


def page(folder: Path) -> str:
    """The whole docs/benchmarks.md for the records under `folder`."""
    parts = [
        "# Benchmarks\n",
        "Made by `python -m backend.bench.report` from the raw rows under `docs/benchmarks/`; do not edit by hand.\n",
    ]
    notes = folder / "notes.md"
    if notes.is_file():
        parts.append(notes.read_text(encoding="utf-8").strip() + "\n")
    all_records = records(folder)
    if not all_records:
        parts.append("No record yet.\n")
    if any(meta["kind"] == "compile" for _, meta, _ in all_records):
        parts.append("![Milliseconds a step](benchmarks/steps.svg)\n")
    for name, meta, rows in all_records:
        versions = ", ".join(f"{key} {value}" for key, value in meta["versions"].items())
        parts.append(f"## {_TITLES.get(meta['kind'], meta['kind'])}: {name}\n")
        parts.append(_ABOUT.get(meta["kind"], "") + "\n")
        parts.append(f"{meta.get('device', 'unknown device')}; {versions}; commit {meta['commit']}; {meta['date']}.\n")
        parts.append("\n".join(f"    {command}" for command in meta["commands"]) + "\n")
        if meta["kind"] in ("compile", "loss") and rows:
            parts.append(f"{shared(rows)}.\n")
            parts += [f"{line}.\n" for line in lacking(rows)]
        parts.append(render(rows, meta["kind"]))
        compared = loss_table(read_losses(folder / name)) if meta["kind"] in ("compile", "loss") else ""
        if compared:
            parts.append(_ABOUT_LOSS + compared)
            parts.append(f"![Loss a step](benchmarks/{name}/loss.svg)\n")
    return "\n".join(parts)


_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #222 } .soft { fill: #666 } .bar { fill: #3b6fb6 } .eager { fill: #999 }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .soft { fill: #999 } .bar { fill: #6f9fe0 } .eager { fill: #777 } }
</style>"""


def plot(folder: Path) -> str:
    """Bars of milliseconds a step of every compile record, each on its own scale, as SVG for light and dark pages."""
    lines: list[str] = []
    shown = [(title, bars) for name, meta, rows in records(folder) for title, bars in _bars(name, meta, rows)]
    # about what 13 px of a system font take
    left = 16 + 7 * max((len(label) for _, bars in shown for label, _, _ in bars), default=0)
    y = 20
    for title, bars in shown:
        lines.append(f'<text x="8" y="{y}" class="soft">{escape(title)}</text>')
        longest = max(value for _, value, _ in bars) or 1.0
        for label, value, eager in bars:
            y += 22
            width = 340 * value / longest
            lines.append(f'<text x="{left}" y="{y}" text-anchor="end">{escape(label)}</text>')
            shape = f'x="{left + 8}" y="{y - 12}" width="{width:.1f}" height="15"'
            lines.append(f'<rect {shape} class="{"eager" if eager else "bar"}"/>')
            lines.append(f'<text x="{left + 14 + width:.1f}" y="{y}" class="soft">{value:.1f} ms</text>')
        y += 30
    width, body = left + 430, "\n".join(lines)
    return _svg(width, y, body)


def _bars(name: str, meta: dict[str, Any], rows: list[dict[str, str]]) -> Iterator[tuple[str, list[_Bar]]]:
    """(title, bars) of a compile record with checkpointing and without; a bar is (label, milliseconds, eager)."""
    if meta["kind"] != "compile":
        return
    same = common(rows)
    for checkpointing in (True, False):
        good = [group for group in groups(rows) if group.checkpointing is checkpointing and group.good]
        if good:
            title = f"{name}, checkpointing {'on' if checkpointing else 'off'}, {meta.get('device', '')}"
            bars = [(g.name(same), 1000 * (g.median("s_per_step") or 0.0), g.variant == "eager") for g in good]
            yield title, bars


_COLOURS = ("#999999", "#3b6fb6", "#c2703d", "#2b8a70", "#8a5fb0", "#b0485f", "#7d8a2b", "#3d9bb3")
_SMOOTH = 10


def loss_plot(losses: list[dict[str, str]]) -> str:
    """Curves of a record's loss, a line a variant and setting, each a running mean over ten steps, as SVG."""
    curves: dict[str, list[float]] = {}
    for (variant, checkpointing, settings, _), curve in loss_curves(losses).items():
        name = f"{variant}, checkpointing {'on' if checkpointing == '1' else 'off'}" + (
            f", {settings}" * bool(settings)
        )
        curves.setdefault(
            name, [sum(curve[max(0, i - _SMOOTH + 1) : i + 1]) / min(i + 1, _SMOOTH) for i in range(len(curve))]
        )
    low, high = min(map(min, curves.values())), max(map(max, curves.values()))
    longest, lines = max(map(len, curves.values())), []
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{50 + 650 * i / max(1, longest - 1):.1f},{210 - 190 * (value - low) / ((high - low) or 1):.1f}"
            for i, value in enumerate(curve)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines.append(f'<text x="60" y="{244 + 18 * number}" style="fill: {colour}">{escape(name)}</text>')
    lines.append(f'<text x="4" y="26" class="soft">{high:.3f}</text><text x="4" y="214" class="soft">{low:.3f}</text>')
    lines.append(f'<text x="700" y="226" text-anchor="end" class="soft">{longest} steps</text>')
    return _svg(720, 250 + 18 * len(curves), "\n".join(lines))


def _svg(width: int, height: int, body: str) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{_STYLE}\n{body}\n</svg>\n'


def files(docs: Path = DOCS) -> dict[Path, str]:
    """Path -> content of everything the report makes."""
    folder = docs / "benchmarks"
    made = {docs / "benchmarks.md": page(folder)}
    if any(meta["kind"] == "compile" for _, meta, _ in records(folder)):
        made[folder / "steps.svg"] = plot(folder)
    for name, meta, _ in records(folder):
        losses = read_losses(folder / name)
        if meta["kind"] in ("compile", "loss") and loss_table(losses):
            made[folder / name / "loss.svg"] = loss_plot(losses)
    return made


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] | None = None, docs: Path = DOCS) -> int:
    """Write the files, or with --check list those that differ; 1 when one does."""
    parser = argparse.ArgumentParser(prog="python -m backend.bench.report", description="Make docs/benchmarks.md.")
    parser.add_argument("--check", action="store_true", help="write nothing, list the files that differ")
    options = parser.parse_args(argv)
    write = write or sys.stdout.write
    stale = 0
    for path, text in files(docs).items():
        current = path.read_text(encoding="utf-8") if path.is_file() else None
        if current == text:
            continue
        stale = 1
        if options.check:
            write(f"{path} is out of date: run python -m backend.bench.report\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)
            write(f"wrote {path}\n")
    return stale if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
