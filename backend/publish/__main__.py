"""Makes a folder to publish from a run: ``python -m backend.publish RUN``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backend.base.errors import Refused, WriteFailed
from backend.base.paths import resolve
from backend.config.schema import Config
from backend.publish.card import Statement
from backend.runs.errors import RunError
from backend.runs.folder import find

if TYPE_CHECKING:
    from backend.publish.folder import Published

DONE, WRONG_INPUT = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the folder; returns 0, or 2 when it can't be made."""
    options = _parser().parse_args(arguments)
    # here, so that the help comes at once
    from backend.publish.folder import publish

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        run = find(resolve(Config().saving.output_dir), options.run, paths=True)
        folder = None if options.out is None else Path(options.out).expanduser().absolute()
        statement = Statement(
            license=options.license, base_model=options.base_model, trigger=options.trigger, title=options.title
        )
        published = publish(run, options.checkpoint, folder, statement)
    except (Refused, RunError, WriteFailed) as error:
        if options.json:
            sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        else:
            sys.stderr.write(f"error: {error}\n")
        return WRONG_INPUT
    lines = [json.dumps(_facts(published))] if options.json else _lines(published)
    sys.stdout.write("\n".join(lines) + "\n")
    return DONE


def _facts(published: Published) -> dict[str, object]:
    return {
        "folder": str(published.folder),
        "files": published.files,
        "checked": published.checked,
        "notes": published.notes,
    }


def _lines(published: Published) -> list[str]:
    return [
        str(published.folder),
        *(f"  {name}" for name in published.files),
        f"load check: {published.checked}",
        *(f"note: {note}" for note in published.notes),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py publish",
        description="Make a folder with a LoRA file of a run, a model card for Hugging Face, a sheet of its samples "
        "and a preview picture. Paths of this machine and secrets are taken out of all texts. Nothing is uploaded.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run, by name or folder")
    add("--out", metavar="DIR", help="the folder to make; it must not be there (default: publish/NAME in the run)")
    add("--checkpoint", metavar="STEP|FILE", help="LoRA file of the run (default: the newest)")
    add("--license", metavar="TEXT", help="license, such as apache-2.0 (default: that of the run's settings)")
    add("--base-model", metavar="NAME", help="the base model as others name it: black-forest-labs/FLUX.1-dev")
    add("--trigger", metavar="WORDS", help="trigger words (default: those of the run's settings)")
    add("--title", metavar="TEXT", help="title of the card (default: that of the run's settings, or the file's name)")
    add("--json", action="store_true", help="print the result as JSON, for programs")
    return parser


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
