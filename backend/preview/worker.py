"""Draws the requests that come into a folder, one after the other: ``python -m backend.preview.worker FOLDER``.

The base model stays loaded between requests. The process ends when it is asked to, after a while without requests, and
when a training run starts that may need the same GPU.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.base.errors import Refused, WriteFailed
from backend.base.library_imports import library_imports
from backend.memory.allocators import lower_mmap_threshold, use_expandable_segments
from backend.runs.diagnose import explain
from backend.runs.folder import Run, list_runs
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.request import Cell, PreviewRequest
from backend.runs.start_lock import probes, shares_device

log = logging.getLogger(__name__)

_EVERY_S = 0.2
_STATUS_S = 0.25
_RUNS_S = 2.0


@dataclass(kw_only=True, slots=True)
class Ending:
    """Knows why the worker has to end; looks at the disk now and then."""

    folder: PreviewFolder
    roots: Sequence[Path]
    has_gpu: bool
    clock: Callable[[], float] = time.monotonic
    _looked: float = float("-inf")
    _needed_by: str | None = None

    def reason(self) -> str | None:
        """In words for a person; None while it may stay."""
        if self.folder.is_asked_to_end():
            return "It was asked to end."
        if self.is_replaced():
            return "Another preview took its place."
        if self.has_gpu and self.clock() - self._looked > _RUNS_S:
            self._looked = self.clock()
            self._needed_by = self._other()
        return None if self._needed_by is None else f"{self._needed_by} needs the GPU."

    def _other(self) -> str | None:
        """Who else is at work on the GPU, as the beginning of a sentence."""
        for name, runs in (("The finish time that is being measured", probes()), ("", self._runs())):
            for run in runs:
                if run.is_at_work() and shares_device(run):
                    return name or f"The run {run.name}"
        return None

    def is_replaced(self) -> bool:
        """Whether the folder names another process as its worker. A file that can't be read names none."""
        process = self.folder.process()
        # by the pid alone, which nobody else has while this process is there: its create time moves with the clock
        return process is not None and process.pid != os.getpid()

    def _runs(self) -> list[Run]:
        followed = self._followed()
        return [run for root in self.roots for run in list_runs(root) if run.path != followed]

    def _followed(self) -> Path | None:
        """The run that the request in hand, or the next one, follows: it shares the GPU with this process by turns."""
        identity = self.folder.next_id()
        try:
            request = None if identity is None else self.folder.request(identity)
        except (Refused, KeyError, TypeError, OSError, ValueError):
            return None
        return None if request is None or request.follow is None or request.run is None else Path(request.run)


@dataclass(kw_only=True, slots=True)
class StatusWatch:
    """Writes how far a request is into its folder, and raises `Interrupted` when it is to end."""

    folder: PreviewFolder
    identity: str
    ending: Ending
    status: dict[str, Any] = field(default_factory=lambda: {"state": "drawing", "pictures": [], "notes": []})
    _begun: float = 0.0
    _written: float = float("-inf")

    def phase(self, name: str, total: int | None = None) -> None:
        """As `backend.preview.watch.Watch`."""
        self._refuse_if_ended()
        self.status |= {"phase": name, "done": 0, "total": total, "eta_s": None}
        self._begun = time.monotonic()
        self.write()

    def advance(self) -> None:
        """As `backend.preview.watch.Watch`."""
        self._refuse_if_ended()
        done, total = self.status["done"], self.status["total"]
        if done == 1:
            # the first step bears what is done once, a compile above all
            self._begun = time.monotonic()
        if total and done > 1:
            self.status["eta_s"] = round((time.monotonic() - self._begun) / (done - 1) * (total - done), 1)
        self.status["done"] = done + 1
        if time.monotonic() - self._written > _STATUS_S:
            self.write()

    def _refuse_if_ended(self) -> None:
        """Raise `Interrupted` when nobody waits for the pictures any more."""
        from backend.training.sampling import Interrupted

        if self.folder.is_cancelled(self.identity) or self.ending.reason():
            raise Interrupted

    def note(self, text: str) -> None:
        """As `backend.preview.watch.Watch`."""
        self.status["notes"].append(text)

    def picture(self, cell: Cell, account: dict[str, Any]) -> None:
        """A picture is there."""
        others = [each for each in self.status["pictures"] if each["file"] != cell.file]
        self.status["pictures"] = [*others, {"row": cell.row, "column": cell.column, "file": cell.file}]
        self.status["account"] = account
        self.write()

    def grown(self, request: PreviewRequest) -> None:
        """There are other rows."""
        self.status["rows"] = [{"name": row.name, "step": row.step} for row in request.rows]
        self.status["pictures"] = [each for each in self.status["pictures"] if each["row"] < len(request.rows)]
        self.write()

    def end(self, state: str, **more: object) -> None:
        """The request has ended."""
        self.status |= {"state": state, "phase": None, "eta_s": None, **more}
        self.write()

    def write(self) -> None:
        """Write it now."""
        self._written = time.monotonic()
        self.folder.write_status(self.identity, self.status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Work until there is a reason to end; 0."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    folder = PreviewFolder(options.folder)
    lower_mmap_threshold()
    use_expandable_segments(os.environ)
    folder.write_worker(state="starting")
    with library_imports():
        import torch

        from backend.preview.carry_out import Studio

    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else "CPU"
    folder.write_worker(state="ready", device=device, gpu=gpu)
    ending, studio = Ending(folder=folder, roots=options.runs, has_gpu=gpu), Studio()
    why = serve(folder, studio, ending, options.idle)
    log.info("The preview ends: %s", why)
    studio.close()
    if not ending.is_replaced():
        folder.write_worker(state="ended", why=why, device=device, gpu=gpu)
    return 0


def serve(folder: PreviewFolder, studio: Any, ending: Ending, idle_s: float) -> str:
    """Draw request after request until there is a reason to end, which it gives in words."""
    last = time.monotonic()
    # one whose end can't be written, as on a full disk, would come again and again
    tried: set[str] = set()
    while (why := ending.reason()) is None and time.monotonic() - last < idle_s:
        identity = folder.next_id(tried)
        if identity is None:
            time.sleep(_EVERY_S)
            continue
        tried.add(identity)
        work_on(folder, identity, studio, ending)
        last = time.monotonic()
    why = why or f"Nothing was asked of it for {idle_s:g} s."
    if not ending.is_replaced():
        folder.cancel_open(why)
    return why


def work_on(folder: PreviewFolder, identity: str, studio: Any, ending: Ending) -> None:
    """Draw one request and write down how that ended, whatever happens."""
    from backend.preview.carry_out import Account, carry_out
    from backend.preview.follow import follow
    from backend.preview.matrix import write_matrix
    from backend.training.sampling import Interrupted

    watch, follows = StatusWatch(folder=folder, identity=identity, ending=ending), False
    try:
        request = _read(folder, identity)
        watch.write()
        if folder.is_cancelled(identity):
            raise Interrupted

        def drawn(_: PreviewRequest, cell: Cell) -> None:
            watch.picture(cell, Account.of(studio).to_json())

        def grown(more: PreviewRequest) -> None:
            watch.grown(more)
            write_matrix(more, place)

        place = folder.pictures_dir(identity)
        if request.follow is not None and request.run is not None:
            follows = True
            request = follow(request, place, studio, watch, drawn, grown)
        else:
            carry_out(request, place, studio, watch, lambda cell: drawn(request, cell))
        if len(request.rows) > 1 or follows:
            write_matrix(request, place)
        watch.end("done")
    except Interrupted:
        watch.end("cancelled", why=ending.reason())
    except (Refused, WriteFailed) as error:
        watch.end("failed", error={"text": error.text, "remedy": error.remedy})
    except Exception as error:  # noqa: BLE001 - the next request may be fine
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())
        diagnosis = explain(error, None)
        watch.end("failed", error={"text": diagnosis.text, "remedy": diagnosis.remedy})
        studio.close()
    finally:
        if follows:
            # the run has the GPU to itself from now on
            studio.close()


def _read(folder: PreviewFolder, identity: str) -> PreviewRequest:
    try:
        return folder.request(identity)
    except (KeyError, TypeError, OSError) as error:
        raise Refused(f"the request can't be read: {error}", "Draw again.") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="preview worker", allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--idle", type=float, default=600.0, metavar="S", help="seconds without requests to end after")
    parser.add_argument("--runs", type=Path, action="append", default=[], metavar="DIR", help="a folder of runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
