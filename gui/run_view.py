"""Follows runs for the Run tab: each event and each row is read once, whoever looks and however long the run is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.runs.events import read_events
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.rollup import Rollup
from backend.runs.status import StatusReader, unreadable
from gui import messages

log = logging.getLogger(__name__)

SERIES = ("loss", "loss_smooth", "vram_allocated", "vram_reserved", "vram_peak", "vram_others", "ram", "norm_mean",
          "norm_max")  # fmt: skip
# Several tabs ask each second about a run at work; what one of them was told just now serves the others.
_STANDS_S = 0.9
# Enough for any chart and table; a run with thousands of samples shows the newest.
_MOST = 400


class RunWatch:
    """Follows one run. Safe for several page requests at once; holds no file open between calls."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.metrics = MetricsReader(run)
        self._curve = Rollup(self.metrics, SERIES)
        self._status = StatusReader(run)
        self._looked = float("-inf")
        self._fresh = True
        self._shown: tuple[int | None, dict[str, Any]] | None = None
        self._version = 0
        self._named: dict[str, dict[str, dict]] = {"sample": {}, "checkpoint": {}}
        self._lock = threading.Lock()
        self._offset = 0
        self._facts: dict[str, Any] = _empty()
        self._ended: tuple[object, dict[str, Any]] | None = None
        self._listed: dict[str, tuple[object, list[dict[str, Any]]]] = {}

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
            except Exception as wrong:  # noqa: BLE001 - whatever is odd about one folder must not take the page down
                log.debug("the status of %s can't be told", self.run.name, exc_info=True)
                status = unreadable(self.run, wrong)
            told = status.to_dict()
            self._looked, self._shown = time.monotonic(), (mark, told) if status.active else None
            self._ended = (mark, told) if self._status.final else None
            return told

    def last(self) -> dict[str, Any] | None:
        """The newest row of metrics that `status` has seen; None when there is none."""
        # The last rows are written a moment after the end is told, and from then on the status is not read again.
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
        except (TypeError, ValueError, OverflowError, ArithmeticError) as wrong:
            log.debug("the metrics of %s can't be drawn: %s", self.run.name, wrong)
            return None, ""
        return (None if mark == known else series), mark

    def facts(self) -> tuple[dict[str, Any], str]:
        """Plan, validation, samples, files, recompiles and breaks, and a mark that changes when they do."""
        with self._lock:
            events, offset = read_events(self.run.events_path, self._offset)
            if offset < self._offset:
                # The file was replaced by a shorter one: whatever it said before is void.
                self._facts, self._named = _empty(), {"sample": {}, "checkpoint": {}}
                events, offset = read_events(self.run.events_path, 0)
            self._offset = offset
            for event in events:
                try:
                    self._take(event)
                except (TypeError, ValueError, AttributeError) as wrong:
                    log.debug("an event of %s says nothing: %s", self.run.name, wrong)
            facts = dict(self._facts)
            facts["checkpoints"] = self._once("checkpoint", self.run.checkpoints_dir, self._files)
            facts["samples"] = self._once("sample", self.run.samples_dir, self._samples)
            mark = f"{self._version}:{len(facts['checkpoints'])}:{len(facts['samples'])}"
        return facts, mark

    def _take(self, event: dict[str, Any]) -> None:
        facts, kind = self._facts, event["kind"]
        # Progress goes by a hundred times as often as all the rest, and is the status's to tell.
        self._version += kind not in ("phase", "step_total", "state")
        if kind == "plan":
            facts["plan"] = {key: event.get(key) for key in ("mode", "compile", "graphs", "steps", "recommended")}
        elif kind == "validation":
            facts["validation"] = [*facts["validation"], _without_frame(event)][-_MOST:]
        elif kind == "compile":
            facts["compile"] = facts["compile"] | _compile(event, facts["compile"])
        elif kind == "cuda_graphs":
            facts["recorded"] = _without_frame(event)
        elif kind == "recompile":
            facts["recompiles"] = [*facts["recompiles"], _without_frame(event)][-_MOST:]
        elif kind == "graph_break":
            facts["breaks"] = [*facts["breaks"], _without_frame(event)][-_MOST:]
        elif kind == "warning":
            # Each process of a run looks at the same settings: what it warns of is told once.
            others = [told for told in facts["warnings"] if told != _warning(event)]
            facts["warnings"] = [*others, _warning(event)][-20:]
        elif kind in ("sample", "checkpoint"):
            facts["told"] = facts["told"] | {kind: facts["told"].get(kind, 0) + 1}
            self._named[kind][Path(str(event.get("file"))).name] = event
        elif kind == "memory_estimate":
            facts["memory"] = {key: event.get(key) for key in ("headline", "allocated", "ram_total", "verdict")}
        elif kind == "swap":
            facts["swap"] = _without_frame(event)
        elif kind == "memory_peak":
            facts["memory"] = (facts["memory"] or {}) | _without_frame(event)
        elif kind == "done":
            facts["result"] = _without_frame(event)
        elif kind == "resumed":
            # A new process compiles anew: what the old one said about it is no longer so.
            facts["compile"], facts["recompiles"], facts["breaks"], facts["recorded"] = {}, [], [], None

    def _once(self, kind: str, folder: Path, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """A listing, made anew only when an event spoke of it or its folder changed: it reads all events each time."""
        mark = (self._facts["told"].get(kind), self._facts["result"] is None, _changed_at(folder))
        held = self._listed.get(kind)
        if held is None or held[0] != mark:
            held = self._listed[kind] = (mark, make())
        return held[1]

    def _files(self) -> list[dict[str, Any]]:
        final = Path(str((self._facts.get("result") or {}).get("lora") or "")).name
        return [
            {
                "name": file.path.name,
                "path": str(file.path),
                "step": file.step,
                "size": file.size,
                "final": file.path.name == final,
            }
            for file in self.run.checkpoints(self._named["checkpoint"])
        ]

    def _samples(self) -> list[dict[str, Any]]:
        return [
            {"file": s.path.name, "step": s.step, "prompt_index": s.prompt_index, "prompt": s.prompt}
            for s in self.run.samples(self._named["sample"])[-_MOST:]
        ]


def _compile(event: dict[str, Any], so_far: dict[str, Any]) -> dict[str, Any]:
    """What a compile event changes: one about the whole process says its state, one about a graph adds to the list."""
    if "compiling" in event:
        return {"compiling": event["compiling"]}
    if "state" in event:
        return {key: event.get(key) for key in ("state", "reason", "planned")}
    if "share" in event:
        return {"share": event["share"]}
    if "graph" not in event:
        return {}
    graph = {key: value for key, value in event.items() if key not in ("v", "t", "kind")}
    return {"graphs": event["graph"], "made": [*so_far.get("made", []), graph][-_MOST:]}


def _empty() -> dict[str, Any]:
    return {
        "plan": None,
        "validation": [],
        "compile": {},
        "recompiles": [],
        "breaks": [],
        "recorded": None,
        "warnings": [],
        "result": None,
        "memory": None,
        "swap": None,
        "told": {},
    }


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _warning(event: dict[str, Any]) -> dict[str, str]:
    return {key: messages.sentence(str(event.get(key) or "")) for key in ("text", "remedy")}


def _without_frame(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("v", "kind")}
