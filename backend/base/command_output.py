"""Writes what a command in a process of its own has to say: text, JSON documents a line, progress."""

from __future__ import annotations

import atexit
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from backend.base.problems import Problem

Write = Callable[[str], Any]
Progress = Callable[[int, int, str], None]
# Lines of progress a second: enough for a bar, little enough for a pipe.
_PER_SECOND = 10


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


def write_problems(write: Write, as_json: bool, problems: Sequence[Problem]) -> None:
    """Say what keeps a command from its work: a document of the kind ``problems``, or a sentence a line."""
    if as_json:
        write_json(write, {"kind": "problems", "problems": [vars(problem).copy() for problem in problems]})
    else:
        write("\n".join(problem.sentence() for problem in problems) + "\n")


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


def scan_documents(write: Write) -> Progress:
    """Documents of how far the scan is, one a percent, for a command whose share counts what comes after it."""
    percents: set[int] = set()

    def progress(done: int, total: int, path: str) -> None:
        percent = 100 * done // max(1, total)
        if percent not in percents:
            percents.add(percent)
            text = f"Looking at the pictures: {done:,} of {total:,}."
            write_json(write, {"kind": "progress", "text": text, "share": 0.0})

    return progress
