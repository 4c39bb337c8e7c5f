"""Draws a matrix of checkpoints while its run trains: each one that is saved becomes a row, until the run has ended.

On a GPU of its own, or on a CPU, it draws while the run trains. Where both need one GPU they take turns: the run waits
between two steps with its weights in RAM, and afterwards the preview's weights go there. The run computes the same:
nothing random is drawn while it waits, and its weights come back byte by byte. What is drawn is a file that it saved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.memory.devices import pick_device
from backend.preview.carry_out import Studio, draw_cell
from backend.preview.watch import Watch
from backend.runs.control import Control
from backend.runs.folder import Run
from backend.runs.liveness import is_here
from backend.runs.pause import Pause
from backend.runs.preview.request import Cell, PreviewRequest, find_checkpoint, with_new_rows
from backend.runs.samples import still_of
from backend.runs.start_lock import shares_device

log = logging.getLogger(__name__)

_EVERY_S = 0.5


@dataclass(kw_only=True, slots=True)
class Turns:
    """The turns of run and preview on one GPU; nothing at all where they have none in common."""

    run: Run
    studio: Studio
    watch: Watch
    needed: bool
    _pause: Pause = field(init=False)
    _held: bool = False

    def __post_init__(self) -> None:
        self._pause = Pause(self.run)

    def take(self) -> None:
        """Have the GPU: once the run waits, or has ended. A run that is to stop gets it first."""
        if not self.needed:
            return
        if self._held and not self._stops() and (self._pause.is_asked() or not self.run.is_at_work()):
            return
        self.give_back()
        self._held = True
        self.watch.phase("turn")
        while self.run.is_at_work() and not self._pause.is_answered():
            if self._stops():
                self._release()
            elif self._pause.word() is None:
                # not asked yet, or a start of the run has removed it; another preview that asks comes first
                self._pause.ask()
            self.watch.advance()
            time.sleep(_EVERY_S / 5)

    def give_back(self) -> None:
        """Let the run continue, with the GPU to itself."""
        if not self._held:
            return
        try:
            if self.studio.pipeline is not None and self.run.is_at_work():
                self.studio.pipeline.leave()
        except (MemoryError, RuntimeError) as error:
            log.warning("The RAM has no room for the preview's model, which is loaded again: %s", error)
            self.studio.close()
        finally:
            self._held = False
            self._release()

    def _release(self) -> None:
        """Take back what was asked; what another preview asks for stays."""
        if self._pause.is_asked():
            self._pause.release()

    def _stops(self) -> bool:
        """Whether the run is asked to stop."""
        return "stop" in Control(self.run).pending()


def follow(
    request: PreviewRequest,
    folder: Path,
    studio: Studio,
    watch: Watch,
    drawn: Callable[[PreviewRequest, Cell], None],
    grown: Callable[[PreviewRequest], None],
    pauses: bool | None = None,
) -> PreviewRequest:
    """Draw the rows of `request` and those that its run adds; the request with all of them.

    A checkpoint that the run removes before it is drawn, as save_last_n does, is left out with a note.

    drawn: called after each picture. grown: called when there are other rows, and when a row is whole. pauses: whether
    run and preview take turns; None where they share a GPU. Raises as `carry_out`.
    """
    assert request.run is not None
    run, done = Run(request.run), 0
    # a trainer in another container can't tell whether this process lives, and would not wait for it
    shared = pick_device().type == "cuda" and is_here(run.record()) and shares_device(run)
    turns = Turns(run=run, studio=studio, watch=watch, needed=shared if pauses is None else pauses)
    try:
        while True:
            at_work = run.is_at_work()
            more = with_new_rows(request, whole=not at_work)
            if len(more.rows) > len(request.rows):
                request = more
                grown(request)
            cells = request.cells()[done:]
            if not cells and not at_work:
                if not request.rows:
                    find_checkpoint(run, None)
                return request
            if not cells:
                turns.give_back()
                watch.phase("wait")
                _sleep(watch)
                continue
            if not _is_drawn(request, cells[0], folder, turns):
                row = cells[0].row
                watch.note(f"{request.rows[row].name} is left out: the run removed its file before it was drawn.")
                request, done = _without(request, row, folder), row * len(request.prompts)
                grown(request)
                continue
            done += 1
            drawn(request, cells[0])
            if done % len(request.prompts) == 0:
                grown(request)
    except BaseException:
        # before the run continues: it may need all of the GPU
        studio.close()
        raise
    finally:
        turns.give_back()


def _is_drawn(request: PreviewRequest, cell: Cell, folder: Path, turns: Turns) -> bool:
    """Draw a picture, once it is this preview's turn; False where the run has removed the row's file."""
    row = request.rows[cell.row]
    file = resolve(row.loras[0].path)
    if not file.is_file():
        return False
    turns.take()
    try:
        # of rows before and after it the files may go meanwhile
        pipeline = turns.studio.ready(replace(request, rows=(row,)), turns.watch)
        draw_cell(request, cell, folder, pipeline, turns.watch)
    except (Refused, OSError):
        if file.is_file():
            raise
        return False
    return True


def _without(request: PreviewRequest, row: int, folder: Path) -> PreviewRequest:
    """The request without one row, of which `folder` keeps no picture."""
    for cell in request.cells():
        if cell.row == row:
            for path in {folder / cell.file, still_of(folder / cell.file)}:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
    return replace(request, rows=(*request.rows[:row], *request.rows[row + 1 :]))


def _sleep(watch: Watch) -> None:
    watch.advance()
    time.sleep(_EVERY_S)
