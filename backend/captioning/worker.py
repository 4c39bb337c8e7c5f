"""Captions the images of a request for the page: ``python -m backend.captioning.worker ROOT REQUEST``.

REQUEST is a JSON file as `CaptionRequest.to_json` makes it. One JSON document a line goes to stdout: ``phase`` and
``note`` with a text, ``progress`` with done, total and seconds_left, ``problem`` with text and remedy. The captions
themselves are in the results file of the request, below ROOT.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.base.command_output import Write, stdout_writer, write_json
from backend.base.errors import Failed, Refused, WriteFailed
from backend.captioning.session import Session
from backend.memory.allocators import use_expandable_segments
from backend.runs.captioning.request import CaptionRequest
from backend.runs.diagnose import explain
from backend.runs.errors import RunError

log = logging.getLogger(__name__)

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Caption; returns 0, 1 when it broke off, 2 when it can't begin."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    os.environ["HF_HUB_OFFLINE"] = "1"
    use_expandable_segments(os.environ)
    out = write or stdout_writer()

    def say(kind: str, **facts: Any) -> None:
        write_json(out, {"kind": kind, **facts})

    try:
        request = CaptionRequest.from_json(json.loads(options.request.read_text(encoding="utf-8")))
        session = Session.open(request, options.root)
        steps = session.carry_out(
            options.runs, lambda text: say("note", text=text), lambda text: say("phase", text=text)
        )
        for step in steps:
            say("progress", done=step.done, total=step.total, seconds_left=step.seconds_left)
    except (Refused, RunError) as error:
        say("problem", text=error.text, remedy=error.remedy)
        return WRONG_INPUT
    except (Failed, WriteFailed) as error:
        say("problem", text=error.text, remedy=error.remedy)
        return FAILED
    except Exception as error:
        # what torch or transformers raises, in words
        log.warning("The captions could not be made", exc_info=True)
        why = explain(error)
        say("problem", text=why.text, remedy=why.remedy)
        return FAILED
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m backend.captioning.worker", allow_abbrev=False)
    parser.add_argument("root", type=Path, help="folder of all result folders")
    parser.add_argument("request", type=Path, help="JSON file with the request")
    parser.add_argument("--runs", type=Path, action="append", default=[], help="folder of runs; repeatable")
    return parser


if __name__ == "__main__":
    sys.exit(main())
