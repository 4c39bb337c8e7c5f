"""What a run's events add up to, for the Run tab: each event is read once, and folded into a small dict."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.runs.events import read_events
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.status import StatusReader
from gui import messages

# Enough for any chart and table; a run with thousands of samples shows the newest.
_MOST = 400


class RunWatch:
    """Follows one run. Safe for several page requests at once; holds no file open between calls."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.metrics = MetricsReader(run)
        self._status = StatusReader(run)
        self._lock = threading.Lock()
        self._offset = 0
        self._facts: dict[str, Any] = _empty()
        self._ended: tuple[object, dict[str, Any]] | None = None
        self._listed: dict[str, tuple[object, list[dict[str, Any]]]] = {}

    def status(self) -> dict[str, Any]:
        """``RunStatus.to_dict()``: state, phase, steps, ETA, error, warnings."""
        with self._lock:
            # A run that has ended changes only with its record; a page lists hundreds of them every other second.
            mark = _changed_at(self.run.record_path)
            if self._ended is not None and self._ended[0] == mark:
                return self._ended[1]
            status = self._status.read()
            told = status.to_dict()
            self._ended = None if status.active else (mark, told)
            return told

    def facts(self) -> tuple[dict[str, Any], str]:
        """Plan, validation, samples, files, recompiles and breaks, and a mark that changes when they do."""
        with self._lock:
            events, offset = read_events(self.run.events_path, self._offset)
            if offset < self._offset:
                # The file was replaced by a shorter one: whatever it said before is void.
                self._facts = _empty()
                events, offset = read_events(self.run.events_path, 0)
            self._offset = offset
            for event in events:
                self._take(event)
            facts = dict(self._facts)
            facts["checkpoints"] = self._once("checkpoint", self.run.checkpoints_dir, self._files)
            facts["samples"] = self._once("sample", self.run.samples_dir, self._samples)
        mark = f"{offset}:{len(facts['checkpoints'])}:{len(facts['samples'])}"
        return facts, mark

    def _take(self, event: dict[str, Any]) -> None:
        facts, kind = self._facts, event["kind"]
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
            for file in self.run.checkpoints()
        ]

    def _samples(self) -> list[dict[str, Any]]:
        return [
            {"file": s.path.name, "step": s.step, "prompt_index": s.prompt_index, "prompt": s.prompt}
            for s in self.run.samples()[-_MOST:]
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
