"""`python -m backend.dataset FOLDER ...`: a scan in a process of its own.

With `--json` one JSON document a line goes to stdout: with `--progress`, lines
`{"kind": "progress", "done": 12, "total": 300, "path": "..."}`, and at the end `{"kind": "result", "scan": {...}}` as
`Scan.from_dict` reads it (`{"kind": "result", "dataset": {...}}` for `--config`, as `DatasetScan.from_dict` reads it).
"""

from __future__ import annotations

import argparse
import atexit
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.base.paths import PROJECT_ROOT, resolve
from backend.config import load
from backend.dataset.scan import FolderSpec, scan, scan_dataset

Write = Callable[[str], Any]
Progress = Callable[[int, int, str], None]
# Lines of progress a second: enough for a bar, little enough for a pipe.
_PER_SECOND = 10


def main(argv: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Scan and write the result; 0 when there is something to train on, 1 when not, 2 for wrong arguments."""
    given = _parser().parse_args(argv)
    out = write or stdout_writer()
    memory = None if given.no_cache else resolve(given.cache_dir) if given.cache_dir else PROJECT_ROOT / "cache"
    progress = progress_of(out, given.json, given.progress)
    if given.config is None:
        specs = [FolderSpec(resolve(folder), given.num_repeats) for folder in given.folders]
        trigger = given.trigger_word
        found = scan(specs, given.caption_extension, trigger_word=trigger, cache_dir=memory, progress=progress)
        document: dict[str, Any] = {"kind": "result", "scan": found.to_dict()} if given.json else {}
        lines, usable = found.summary(), bool(found.items)
    else:
        loaded = load.load(resolve(given.config))
        if loaded.config is None:
            lines = [problem.sentence() for problem in loaded.problems]
            document = {"kind": "problems", "problems": [vars(problem).copy() for problem in loaded.problems]}
            usable = False
        else:
            whole = scan_dataset(loaded.config, progress, cache_dir=memory)
            document = {"kind": "result", "dataset": whole.to_dict()} if given.json else {}
            lines, usable = whole.train.summary(), bool(whole.train.items)
    if given.json:
        write_json(out, document)
    else:
        out("\n".join(lines) + "\n")
    return 0 if usable else 1


def stdout_writer() -> Write:
    """Writes to stdout in UTF-8, whatever the terminal's code page; names that are no text are escaped."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return write


def write_json(write: Write, document: dict[str, Any]) -> None:
    """One line of JSON, in ASCII: it survives any pipe."""
    write(json.dumps(document) + "\n")


def progress_of(write: Write, as_json: bool, asked: bool) -> Progress | None:
    """Lines where they are asked for; else a bar for a person at a terminal, and nothing for a pipe."""
    if asked:
        return progress_lines(write, as_json)
    return None if as_json or not sys.stderr.isatty() else progress_bar()


def progress_bar() -> Progress:
    """A bar on stderr with the time that is left, gone when all is done."""
    from rich import progress as shown
    from rich.console import Console

    columns = (shown.BarColumn(), shown.MofNCompleteColumn(), shown.TimeRemainingColumn())
    words = shown.TextColumn("Looking at the pictures")
    bar = shown.Progress(words, *columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=None)
    # A scan that ends in an error would leave the terminal without its cursor.
    atexit.register(bar.stop)

    def progress(done: int, total: int, path: str) -> None:
        if done < total:
            bar.start()
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()

    return progress


def progress_lines(write: Write, as_json: bool, per_second: float = _PER_SECOND) -> Progress:
    """A progress callback that writes a line now and then, and always the last one."""
    last = 0.0

    def progress(done: int, total: int, path: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - last < 1 / per_second:
            return
        last = now
        if as_json:
            write_json(write, {"kind": "progress", "done": done, "total": total, "path": path})
        else:
            write(f"{done} of {total}\n")

    return progress


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m backend.dataset", description="Scan image folders.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folders", nargs="*", default=[], type=Path, help="folders with pictures")
    what.add_argument("--config", type=Path, help="scan what this TOML file trains on")
    parser.add_argument("--caption_extension", default=".txt", help="ending of the caption files (.txt)")
    parser.add_argument("--num_repeats", type=int, default=1, help="repeats of every picture (1)")
    parser.add_argument("--trigger_word", help="put in front of captions without it")
    parser.add_argument("--cache_dir", type=Path, help="where measures are kept (cache/ in the project)")
    parser.add_argument("--no_cache", action="store_true", help="keep no measures and use none")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.add_argument("--progress", action="store_true", help="lines of progress before the result")
    return parser
