"""Makes docs/rehearsals.md from the rows in docs/rehearsals/results.jsonl and from nothing else.

python -m backend.bench.rehearsal.report [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.base.command_output import stdout_writer
from backend.base.files import write_atomic

DOCS = Path(__file__).parents[3] / "docs"
RESULTS = "results.jsonl"

_COLUMNS = ("Model", "Settings", "s/step", "Compile s", "Graphs / planned", "Recompiles", "Peak GB", "Reserved GB",
            "Estimate GB", "Estimate / peak", "Resume s", "GPU", "torch", "Commit")  # fmt: skip

_ABOUT = """# Dress rehearsals

<!-- Made by `python -m backend.bench.rehearsal.report` from docs/rehearsals/results.jsonl; do not edit by hand. -->

A rehearsal is a whole run at the size of a published model: the pictures or clips are scanned, they and their captions
are encoded, the model is loaded and compiled, and some steps, a save and a sample follow. Then the run is stopped
and resumed. Only the base model's weights are random, since speed and memory don't depend on them.

    python launcher.py bench --rehearse sdxl --work /tmp/rehearsal --out docs/rehearsals
    python launcher.py bench --rehearse flux --work /tmp/rehearsal --out docs/rehearsals --setting network_dim=32
    python launcher.py bench --rehearse wan21_14b --clip 832x480x81 --work /tmp/rehearsal --out docs/rehearsals

`--work` is a new folder, or that of an earlier rehearsal, on a disk with room for the model: 7 GB for SDXL, 34 GB for
FLUX.1, 58 GB for Qwen-Image, 41 GB for Wan 2.1 14B and for both experts of Wan 2.2 in 8 bits, 42 GB for
HunyuanVideo, less with `--blocks`. The model stays there for the next rehearsal.
All options: `python launcher.py bench --rehearse sdxl --help`.

"""
_COLUMNS_ABOUT = """
s/step is the median of the steps behind the last compile. Graphs are those that the run made and those that it had
planned. Peak and reserved are the most that PyTorch's allocator held; estimate is the run's own, made before it began,
and holds what recorded passes keep where it expected them; where it did not, it is compared with the peak without
that. Resume is the time from the start of the second process to the end of its first step. A GB has 2**30 bytes,
as in the names of GPUs.
"""
_FULL_COLUMNS = ("Who", "Model", "Weights", "Optimizer", "Blocks swapped", "s/step", "Peak GB", "Reserved GB",
                 "Estimate GB", "RAM GB")  # fmt: skip
_FULL_ABOUT = """
## Full fine-tuning

All weights of the denoiser are trained. What others publish stands beside it, as their pages say it: GB of the GPU that
it takes, measured by them on other machines.

"""
# docs/flux_train_network.md and docs/sdxl_train_network.md of kohya-ss/sd-scripts, for batches of one at 1024 px
_PUBLISHED = (
    ("sd-scripts", "FLUX.1", "bf16", "adafactor, fused", "8", "24"),
    ("sd-scripts", "FLUX.1", "bf16", "adafactor, fused", "28", "12"),
    ("sd-scripts", "SDXL", "fp32", "adafactor, fused", "0", "17"),
)
_PHASES_ABOUT = """
Seconds that each phase of the first process took:

"""


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of the rehearsals recorded in `folder`, oldest first; ValueError that names a line which can't be read."""
    path = folder / RESULTS
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is broken JSON: {error}. Delete this line.") from error
    return rows


def add_row(folder: Path, row: Mapping[str, Any]) -> None:
    """Add a row to the record in `folder`, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [*read_rows(folder), row]
    write_atomic(folder / RESULTS, "".join(json.dumps(each) + "\n" for each in rows))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    return "\n".join([*lines, *(table_row(row) for row in rows)]) + "\n"


def table_row(row: Mapping[str, Any]) -> str:
    """One line of the table; a rehearsal that failed says so in place of its time a step."""
    settings = ", ".join(row.get("settings") or []) or "defaults"
    percent = row.get("estimate_percent")
    return _line(
        [
            _model(row),
            settings,
            f"failed: {row['error']}" if row.get("error") else _text(row.get("s_per_step")),
            _text(row.get("compile_s")),
            f"{_text(row.get('graphs'))} / {_text(row.get('planned_graphs'))}",
            _text(row.get("recompiles")),
            _text(row.get("peak_allocated_gb")),
            _text(row.get("peak_reserved_gb")),
            _text(row.get("estimated_gb")),
            "-" if percent is None else f"{percent:g} %",
            _text(row.get("resume_first_step_s")),
            _text(row.get("device")),
            _text(row.get("torch")),
            _text(row.get("commit")),
        ]
    )


def phase_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Seconds that each phase of the rows' first processes took, as a Markdown table; empty where none is known."""
    names = list(dict.fromkeys(name for row in rows for name in row.get("phases_s") or {}))
    if not names:
        return ""
    lines = [_line(["Model", *names]), _line(["---"] * (len(names) + 1))]
    for row in rows:
        phases = row.get("phases_s") or {}
        lines.append(_line([_model(row), *(_text(phases.get(name)) for name in names)]))
    return "\n".join(lines) + "\n"


def full_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows that train whole models, beside what others publish, as a Markdown table; empty without such rows."""
    own = [row for row in rows if _set(row).get("training.kind") == "full"]
    if not own:
        return ""
    lines = [_line(_FULL_COLUMNS), _line(["---"] * len(_FULL_COLUMNS))]
    for row in own:
        values = _set(row)
        fused = ", fused" if values.get("optimizer.fused_backward") == "true" else ""
        figures = [f"failed: {row['error']}" if row.get("error") else _text(row.get("s_per_step"))]
        names = ("peak_allocated_gb", "peak_reserved_gb", "estimated_gb", "ram_peak_gb")
        lines.append(
            _line(
                [
                    "Monotile",
                    _model(row),
                    values.get("training.full_weight_dtype", "fp32"),
                    values.get("optimizer.optimizer", "adamw") + fused,
                    values.get("memory.blocks_to_swap", "0"),
                    *figures,
                    *(_text(row.get(name)) for name in names),
                ]
            )
        )
    lines += [_line([*cells[:5], "-", cells[5], "-", "-", "-"]) for cells in _PUBLISHED]
    return "\n".join(lines) + "\n"


def _set(row: Mapping[str, Any]) -> dict[str, str]:
    """``section.name`` -> value of the settings that a row gives."""
    return {name: value for name, _, value in (text.partition("=") for text in row.get("settings") or [])}


def _model(row: Mapping[str, Any]) -> str:
    """Base model, its blocks where it is cut, what is trained but a LoRA, and the size of what is trained on."""
    depth = f", {row['blocks']} blocks" if row.get("blocks") else ""
    depth += ", full" if _set(row).get("training.kind") == "full" else ""
    return f"{row['size']}{depth}, {row.get('clip') or '{} px'.format(row['resolution'])}"


def page(folder: Path) -> str:
    """The whole docs/rehearsals.md for the record in `folder`."""
    rows = read_rows(folder)
    if not rows:
        return f"{_ABOUT}No rehearsal is recorded yet.\n"
    commands = "\n".join(dict.fromkeys(f"    {row['command']}" for row in rows))
    phases = phase_table(rows)
    phases = phases and f"{_PHASES_ABOUT}{phases}"
    full = full_table(rows)
    full = full and f"{_FULL_ABOUT}{full}"
    return f"{_ABOUT}{table(rows)}{_COLUMNS_ABOUT}{_notes(rows)}{phases}{full}\nThe rows were made by:\n\n{commands}\n"


def _notes(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was written to a row by hand, such as how a figure was corrected."""
    noted = [(number, row["note"]) for number, row in enumerate(rows, start=1) if row.get("note")]
    return "".join(f"\nRow {number}: {note}\n" for number, note in noted)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] | None = None, docs: Path = DOCS) -> int:
    """Write the page, or with --check say whether it differs; 1 when it does."""
    parser = argparse.ArgumentParser(
        prog="python -m backend.bench.rehearsal.report", description="Make docs/rehearsals.md."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, say whether the page differs")
    options = parser.parse_args(argv)
    write = write or stdout_writer()
    path, text = docs / "rehearsals.md", page(docs / "rehearsals")
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    if options.check:
        write(f"{path} is not what the rows give; run: python -m backend.bench.rehearsal.report\n")
        return 1
    write_atomic(path, text)
    write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
