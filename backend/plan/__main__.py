"""Shows the plan of a config: `python -m backend.plan CONFIG.toml`, then the options.

Options: `[--json] [--progress] [--vram GB] [--SETTING VALUE ...]`.
With `--json` one document a line on stdout: `{"kind": "progress", ...}` lines with `--progress`, then
`{"kind": "plan", "plan": {...}, "scan": {...}, "memory": {...}, "problems": [...]}` or, for a config that can't be
read, `{"kind": "problems", "problems": [...]}`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from backend.base.command_output import Write, progress_of, stdout_writer, write_json, write_problems
from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.base.problems import Problem, errors
from backend.config import load
from backend.config.arguments import split
from backend.dataset.items import DatasetScan
from backend.dataset.scan import scan_dataset
from backend.plan import base_model_check as family_check
from backend.plan.make_plan import plan_for
from backend.plan.memory.plan import memory_plan
from backend.plan.memory.report import memory_dict
from backend.plan.memory.report import render as render_memory
from backend.plan.memory.work import work_of
from backend.plan.payback import payback
from backend.plan.terminal import render

# Files named for each finding of the scan; the whole scan is what `backend.dataset.scan` gives.
_MOST_FILES = 20
_OWN = ("json", "progress", "vram", "help")


def main(argv: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Plan and write the result; 0 when a run could start on it, 1 when not, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="launcher.py plan", description="Steps, batches, buckets and graphs.")
    parser.add_argument("config", type=Path, help="settings file (TOML); settings can follow as --name value")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.add_argument("--progress", action="store_true", help="lines of progress before the result")
    parser.add_argument("--vram", type=_gigabytes, metavar="GB", help="memory in GB of another GPU")
    try:
        own, overrides = split(sys.argv[1:] if argv is None else argv, _OWN)
    except Refused as refused:
        parser.error(str(refused))
    options = parser.parse_args(own)
    out = write or stdout_writer()
    loaded = load.load(options.config, overrides)
    if loaded.config is None:
        return _refuse(out, options.json, loaded.problems)
    # Pictures are looked at whatever the base model is; without one, the plan is of its family's usual model.
    of_base = [] if loaded.config.model.base_model is None else family_check.problems(loaded.config)
    scan = scan_dataset(loaded.config, progress_of(out, options.json, options.progress))
    plan = plan_for(loaded.config, scan)
    memory = memory_plan(loaded.config, work_of(loaded.config, plan), options.vram)
    of_model = memory[0].problems if memory is not None else ()
    problems = [*loaded.problems, *of_base, *scan.problems, *plan.problems, *of_model]
    if options.json:
        document = {"kind": "plan", "plan": plan.to_dict(), "scan": _scan_dict(scan)}
        document["memory"] = None if memory is None else memory_dict(*memory)
        write_json(out, {**document, "problems": [vars(problem).copy() for problem in problems]})
    else:
        console = Console(file=_Stream(out), width=None if sys.stdout.isatty() else 120, highlight=False)
        for line in scan.train.summary():
            console.print(line, markup=False)
        console.print(render(plan))
        if memory is not None:
            console.print(render_memory(*memory))
        if loaded.config.compile.compile:
            known = payback(loaded.config, resolve(loaded.config.saving.output_dir))
            console.print(known.sentence(), markup=False)
        for problem in (*loaded.problems, *of_base, *of_model):
            console.print(f"{problem.severity}: {problem.sentence()}", markup=False)
    return 1 if errors(problems) or not plan.steps.steps else 0


def _gigabytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a memory size; write it in GB, such as 12")
    return size


class _Stream:
    """What rich writes to."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, text: str) -> int:
        self._write(text)
        return len(text)

    def flush(self) -> None:
        """Every write is flushed already."""


def _refuse(out: Write, as_json: bool, problems: Sequence[Problem]) -> int:
    write_problems(out, as_json, problems)
    return 1


def _scan_dict(scan: DatasetScan) -> dict[str, Any]:
    def short(scanned: Any) -> dict[str, Any]:
        return {
            "images": len(scanned.items),
            "pictures": scanned.pictures,
            "captions": scanned.captions,
            "ignored": dict(scanned.ignored),
            "other": dict(scanned.other),
            "folders": [vars(report).copy() for report in scanned.folders],
            "findings": [finding.to_dict(_MOST_FILES) for finding in scanned.findings],
        }

    sets = {name: short(held_out) for name, held_out in scan.validation.items()}
    return {"train": short(scan.train), "validation": sets}


if __name__ == "__main__":
    raise SystemExit(main())
