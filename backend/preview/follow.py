"""Draws a matrix of checkpoints while its run trains: each one that is saved becomes a row, until the run has ended.

On a GPU of its own, or on a CPU, it draws while the run trains. Where both need one GPU they take turns: the run waits
between two steps with its weights in RAM, and afterwards the preview's weights go there. The run computes the same:
nothing random is drawn while it waits, and its weights come back byte by byte. What is drawn is a file that it saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from backend.memory.devices import pick_device
from backend.preview.carry_out import Studio, draw_cell
from backend.preview.watch import Watch
from backend.runs.control import Control
from backend.runs.folder import Run
from backend.runs.pause import Pause
from backend.runs.preview.request import Cell, PreviewRequest, find_checkpoint, with_new_rows
from backend.runs.start_lock import shares_device

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
        if self._held and "stop" not in Control(self.run).pending():
            return
        self.give_back()
        if "stop" not in Control(self.run).pending():
            self._pause.ask()
        self._held = True
        self.watch.phase("turn")
        while self.run.is_at_work() and not self._pause.is_answered():
            self.watch.advance()
            time.sleep(_EVERY_S / 5)

    def give_back(self) -> None:
        """Let the run continue, with the GPU to itself."""
        if not self._held:
            return
        if self.studio.pipeline is not None and self.run.is_at_work():
            self.studio.pipeline.leave()
        self._pause.release()
        self._held = False


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

    drawn: called after each picture. grown: called when there are more rows, and when a row is whole. pauses: whether
    run and preview take turns; None where they share a GPU. Raises as `carry_out`.
    """
    assert request.run is not None
    run, done = Run(request.run), 0
    shared = pick_device().type == "cuda" and shares_device(run)
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
            turns.take()
            draw_cell(request, cells[0], folder, studio.ready(request, watch), watch)
            done += 1
            drawn(request, cells[0])
            if done % len(request.prompts) == 0:
                grown(request)
    finally:
        turns.give_back()


def _sleep(watch: Watch) -> None:
    watch.advance()
    time.sleep(_EVERY_S)
