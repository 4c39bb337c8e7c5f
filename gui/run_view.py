"""Follows runs for the Run tab: each event and each row is read once, whoever looks and however long the run is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.config.experts import SIDES, expert_file
from backend.runs.events import read_events
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.picture_table import FILE
from backend.runs.record import FINAL, number
from backend.runs.rollup import Rollup
from backend.runs.status_reader import StatusReader, unreadable
from gui.picture_results import short_table
from gui.run_facts import MOST, RunFacts
from gui.run_store import RunStore

log = logging.getLogger(__name__)

SERIES = ("loss", "loss_smooth", "vram_allocated", "vram_reserved", "vram_peak", "vram_others", "ram", "norm_mean",
          "norm_max")  # fmt: skip
# Several tabs ask each second about a run at work; the answer that one of them just had serves the others.
_STANDS_S = 0.9
_BRIEF = ("name", "state", "active", "step", "total_steps", "eta_s", "started", "text")


class RunView:
    """One run as pages see it. Safe for several page requests at once; holds no file open between calls."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.metrics = MetricsReader(run)
        self._curve = Rollup(self.metrics, SERIES)
        self._status = StatusReader(run)
        self._looked = float("-inf")
        self._fresh = True
        self._shown: tuple[int | None, dict[str, Any]] | None = None
        self._lock = threading.Lock()
        self._offset = 0
        self._facts = RunFacts()
        self._values: tuple[int, dict[str, Any]] | None = None
        self._ended: tuple[object, dict[str, Any]] | None = None
        self._unread: tuple[object, dict[str, Any] | None] | None = None
        self._listed: dict[Path, tuple[object, list[dict[str, Any]]]] = {}

    def status(self) -> dict[str, Any]:
        """``RunStatus.to_dict()``: state, phase, steps, ETA, error, warnings. A folder that can't be read says so."""
        with self._lock:
            # A run that has ended changes only with its record; a page lists hundreds of them every other second.
            mark = _changed_at(self.run.record_path)
            if self._ended is not None and self._ended[0] == mark:
                return self._ended[1]
            if self._shown is not None and self._shown[0] == mark and time.monotonic() - self._looked < _STANDS_S:
                self._fresh = False
                return self._shown[1]
            self._fresh = True
            try:
                status = self._status.read()
            except Exception as error:  # noqa: BLE001 - whatever is odd about one folder must not take the page down
                log.debug("the status of %s can't be read", self.run.name, exc_info=True)
                status = unreadable(self.run, error)
            values = status.to_dict()
            self._looked, self._shown = time.monotonic(), (mark, values) if status.active else None
            self._ended = (mark, values) if self._status.final else None
            return values

    def brief(self) -> dict[str, Any]:
        """The state, and what a list of runs shows beside it: `status` without its words for a run that ended earlier.

        Reading a status takes milliseconds, and a page that is opened lists all runs.
        """
        if self._ended is None and self._shown is None:
            mark = _changed_at(self.run.record_path)
            if self._unread is None or self._unread[0] != mark:
                self._unread = (mark, _ended_before(self.run.record()))
            if self._unread[1] is not None:
                return {"name": self.run.name, **self._unread[1]}
        status = self.status()
        return {key: status[key] for key in _BRIEF}

    def last(self) -> dict[str, Any] | None:
        """The newest row of metrics that `status` has seen; None when there is none."""
        # The last rows are written a moment after the end, and from then on the status is not read again.
        return self._status.last_row if self._ended is None else self.metrics.last()

    def series(self, width: int, since: int, until: int | None, known: str | None) -> tuple[dict[str, Any] | None, str]:
        """The curves of a run, or of its steps from since to until, and a mark for the next call.

        known: the mark of the last answer; what stands since then is left out, and nothing new is None.
        """
        try:
            if not since and until is None:
                series, mark = self._curve.series(width, known, self._fresh)
            else:
                # A part that lies behind does not change any more; one that reaches the end does with each row.
                newest = (self.last() or {}).get("step") or 0
                edge = newest if until is None or newest < until else until
                mark = f"{self.metrics.identity()}:{width}:{since}:{until}:{edge}"
                series = None if mark == known else self.metrics.range(since, until, width, SERIES)
        except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
            log.debug("the metrics of %s can't be drawn: %s", self.run.name, error)
            return None, ""
        return (None if mark == known else series), mark

    def facts(self) -> tuple[dict[str, Any], str]:
        """Plan, validation, samples, files, recompiles and breaks, and a mark that changes when they do."""
        with self._lock:
            events, offset = read_events(self.run.events_path, self._offset)
            if offset < self._offset:
                # The file was replaced by a shorter one: nothing of the old one holds.
                self._facts, self._values = RunFacts(), None
                events, offset = read_events(self.run.events_path, 0)
            self._offset = offset
            for event in events:
                self._facts.add(event)
            if self._values is None or self._values[0] != self._facts.version:
                self._values = (self._facts.version, self._facts.to_dict())
            facts = dict(self._values[1])
            facts["checkpoints"] = self._once(self._facts.saved, self.run.checkpoints_dir, self._files)
            facts["samples"] = self._once(self._facts.drawn, self.run.samples_dir, self._samples)
            table = self.run.path / FILE
            facts["pictures"] = self._once(self._facts.measured, table, lambda: short_table(self.run))
            mark = f"{self._facts.version}:{len(facts['checkpoints'])}:{len(facts['samples'])}"
        return facts, mark

    def _once(self, events: int, folder: Path, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """A listing of a folder, made again only when an event spoke of it or the folder changed."""
        mark = (events, self._facts.result is None, _changed_at(folder))
        listed = self._listed.get(folder)
        if listed is None or listed[0] != mark:
            listed = self._listed[folder] = (mark, make())
        return listed[1]

    def _files(self) -> list[dict[str, Any]]:
        result = self._facts.result
        final: set[str] = set()
        if result is not None and result.lora:
            # of two experts the result names one, and both are finished
            final = {Path(result.lora).name, *(expert_file(Path(result.lora), side).name for side in SIDES)}
        events, model = self._facts.checkpoints, RunStore.trains_whole_model(self.run)
        return [
            {
                "name": file.path.name,
                "path": str(file.path),
                "step": file.step,
                "size": file.size,
                "final": file.path.name in final,
                "role": file.role,
                "folder": folder,
                "model": model,
            }
            for folder, files in ((False, self.run.checkpoints(events)), (True, self.run.model_folders(events)))
            for file in files
        ]

    def _samples(self) -> list[dict[str, Any]]:
        return [
            {
                "file": s.path.name,
                "picture": s.picture and s.picture.name,
                "step": s.step,
                "prompt_index": s.prompt_index,
                "prompt": s.prompt,
            }
            for s in self.run.samples(self._facts.samples)[-MOST:]
        ]


def _ended_before(record: dict[str, Any]) -> dict[str, Any] | None:
    """What the record of a run that has ended says of it; None for one that has not."""
    state = record.get("state")
    if not isinstance(state, str) or state not in FINAL:
        return None
    result = record.get("result")
    step = result.get("step") if isinstance(result, dict) else None
    facts = {"state": state, "active": False, "step": step if isinstance(step, int) else 0}
    return {**dict.fromkeys(_BRIEF[1:]), **facts, "started": number(record, "started") or None, "text": ""}


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
