"""Measures the loss of each training picture at the start, in the middle and at the end of a run, at fixed noise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from backend.base.errors import WriteFailed
from backend.runs.events import EventWriter
from backend.runs.events.kinds import PictureLossesEvent, WarningEvent
from backend.runs.paths import RunPaths
from backend.runs.phase_progress import PhaseProgress
from backend.runs.picture_table import FILE, Moment, PictureId, PictureTable, read_table, write_table
from backend.training.position import CurrentPosition
from backend.training.requests import Requests
from backend.training.validation import Example, ValidationLoss

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class PictureLosses:
    """Measures all pictures of a run and keeps their losses in its folder; a resumed run measures only what lacks.

    A clip's loss is the mean of its windows'. Validation pictures are measured too, to compare with.
    """

    run: RunPaths
    events: EventWriter
    requests: Requests
    position: CurrentPosition
    total_steps: int
    pictures: Sequence[PictureId]
    """Of every picture or window, in the order of `read`; the windows of a clip share one."""
    read: Callable[[], Iterable[Example]]
    measures: Sequence[Callable[[Iterable[Example]], ValidationLoss]]
    """Each gives the loss at noise levels of its own; that of a picture is the mean over the levels of all."""
    to_use: Callable[[], AbstractContextManager[None]]
    """Holds the LoRA at the weights that files and samples have."""
    how: Mapping[str, object]
    """What else decides the numbers: noise levels, repeats, seed."""

    @property
    def middle(self) -> int:
        """The step of the measurement in the middle; 0 where a run is too short for one."""
        return self.total_steps // 2

    def at_start(self) -> None:
        """Measure before the first step. A resumed run forgets what was measured after its position.

        It measures the middle here where the last process ended in front of it, after the step was saved.
        """
        step = self.position().step
        if self.position().is_start:
            self._measure("start")
            return
        table = self._table()
        later = tuple(moment for moment, measured in table.steps.items() if measured > step)
        if later:
            self._write(table.without(later))
        if step == self.middle and not self.position().micro and table.steps.get("middle") != step:
            self._measure("middle")

    def after_step(self, step: int) -> bool:
        """Measure in the middle of the run; whether that was now."""
        if step != self.middle:
            return False
        self._measure("middle")
        return True

    def at_end(self) -> None:
        """Measure the finished LoRA."""
        self._measure("end")

    def _table(self) -> PictureTable:
        """What was measured under the same conditions."""
        known = read_table(self.run)
        return known if known is not None and known.how == self.how else PictureTable(self.how)

    def _measure(self, moment: Moment) -> None:
        """Every picture, and the table with the results; nothing is kept where a stop comes first."""
        step = self.position().step
        levels: list[list[float]] = [[] for _ in self.pictures]
        total = len(self.pictures) * len(self.measures)
        with PhaseProgress(self.events, "picture_losses", total) as progress, self.to_use():
            for measure in self.measures:
                for own, example in zip(levels, self.read(), strict=True):
                    if self.requests.stop:
                        log.info("The losses of pictures at step %d were left out: the run was asked to stop", step)
                        return
                    own += measure([example]).sigma_losses
                    progress.advance()
        losses: dict[PictureId, list[float]] = {}
        for picture, own in zip(self.pictures, levels, strict=True):
            losses.setdefault(picture, []).append(sum(own) / len(own))
        means = {picture: sum(each) / len(each) for picture, each in losses.items()}
        if self._write(self._table().with_moment(moment, step, means)):
            self.events.write(PictureLossesEvent(step=step, moment=moment, pictures=len(means), file=FILE))
            log.info("Losses of %d pictures at step %d (%s)", len(means), step, moment)

    def _write(self, table: PictureTable) -> bool:
        """Write the table; a warning where the disk refuses it, which is no reason to end the run."""
        try:
            write_table(self.run, table)
        except WriteFailed as error:
            text = f"The losses of the images were not saved: {error}"
            self.events.write(WarningEvent(text=text, remedy="Training continues without them."))
            log.warning(text)
            return False
        return True
