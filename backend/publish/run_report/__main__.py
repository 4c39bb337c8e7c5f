"""Writes the HTML report of a run: ``python -m backend.publish.run_report RUN [--out FILE]``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from backend.base.errors import Refused, WriteFailed
from backend.base.files import write_atomic
from backend.base.paths import resolve
from backend.config.schema import Config
from backend.publish.cleaner import Cleaner
from backend.publish.run_report.facts import gather
from backend.publish.run_report.page import Page
from backend.runs.errors import RunError
from backend.runs.folder import Run, find

DONE, WRONG_INPUT = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; returns 0, or 2 when it can't be made."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        run = find(resolve(Config().saving.output_dir), options.run, paths=True)
        target = run.path / "report.html" if options.out is None else Path(options.out).expanduser().absolute()
        if not target.parent.is_dir():
            raise Refused(f"the folder {target.parent} does not exist", "Make it first, or choose another file.")
        write_atomic(target, written(run, not options.without_notes, options.all_hashes))
    except (Refused, RunError, WriteFailed) as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG_INPUT
    sys.stdout.write(f"{target}\n")
    return DONE


def written(run: Run, with_notes: bool = True, all_hashes: bool = False) -> str:
    """The report as HTML. Refused where a path of this machine would be left in it."""
    facts = gather(run, with_notes, all_hashes)
    cleaner = Cleaner.of(facts.cfg, run.path, run.path.parent)
    page = Page(facts, cleaner).html()
    left = cleaner.leftover(page.encode("utf-8", "replace"))
    if left is not None:
        text = f"the report would hold the path {left} of this machine"
        raise Refused(text, "Take it out of the run's notes, tags or prompts, and write the report again.")
    return page


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py report",
        description="Write one HTML file about a run, which needs nothing beside it: curves, samples, settings that "
        "differ from the defaults, plan and run, compiling, saved files with their hashes. Paths of this machine and "
        "secrets are taken out of all texts.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's name, the beginning of it, 'latest', or the path of its folder")
    add("--out", metavar="FILE", help="the file to write (default: report.html in the run's folder)")
    add("--without-notes", action="store_true", help="leave out your tags and notes")
    add("--all-hashes", action="store_true", help="compute the hash of files over 4 GB too, which takes long")
    return parser


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
