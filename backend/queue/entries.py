"""Defines the queue and its entries as they lie in ``queue.json``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

Phase = Literal["waiting", "started", "ended", "skipped"]

PHASES: frozenset[str] = frozenset({"waiting", "started", "ended", "skipped"})

ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
"""Form of an entry's id, which is part of a file's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One run to be trained. How a started run stands is in its own folder, and nowhere else."""

    id: str
    name: str
    """The run's ``output_name``."""
    added: float
    """Unix seconds."""
    gpu: str | None = None
    """The number of the GPU that it trains on, as in CUDA_VISIBLE_DEVICES; None for any."""
    phase: Phase = "waiting"
    """What the queue has done with it."""
    run: str | None = None
    """Its run folder, from the first start on."""
    resume: bool = False
    """Its next start continues from the saved state."""
    restarts: int = 0
    """Starts since its training last came further, after it had ended without a word."""
    reached: int = 0
    """The step that it was last continued from."""
    before: str | None = None
    """The word in its run's record before its newest start: while it stands there, no trainer was started."""
    failure: str | None = None
    """Why it could not be started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """All entries in their order."""

    entries: tuple[Entry, ...] = ()
    on: bool = False
    """Whether entries are started; a run that was started continues in any case."""
    continue_ended: bool = False
    """Whether a run that ended without a word (a crash, a power cut) is continued from its saved state."""
    paused_by: str = ""
    """Why the queue has paused itself; "" where it has not."""
    leaving: tuple[Entry, ...] = ()
    """Entries that were taken off the list before their run's end was noted, which is still told."""

    def of(self, identity: str) -> Entry | None:
        """The entry of this id."""
        return next((entry for entry in self.entries if entry.id == identity), None)

    def waiting(self) -> list[Entry]:
        """Those that are still to be started, in order."""
        return [entry for entry in self.entries if entry.phase == "waiting"]

    def changed(self, identity: str, change: Callable[[Entry], Entry]) -> Queue:
        """The queue with one entry changed; the same where that entry is gone."""
        return replace(self, entries=tuple(change(each) if each.id == identity else each for each in self.entries))

    def without(self, *identities: str) -> Queue:
        """The queue without some entries. Of those whose run has ended and was not told, the end is still told."""
        gone = [each for each in self.entries if each.id in identities]
        leaving = (*self.leaving, *(each for each in gone if each.phase == "started"))
        return replace(self, entries=tuple(each for each in self.entries if each not in gone), leaving=leaving)

    def left(self, identity: str) -> Queue:
        """The queue once the end of an entry that was taken off was told."""
        return replace(self, leaving=tuple(each for each in self.leaving if each.id != identity))

    def moved(self, identity: str, to: int) -> Queue:
        """The queue with one entry at the place `to` of those that wait, counted from 0; others keep their order."""
        entry = self.of(identity)
        if entry is None or entry.phase != "waiting":
            return self
        waiting = [each for each in self.waiting() if each.id != identity]
        waiting.insert(max(0, min(to, len(waiting))), entry)
        order = iter(waiting)
        return replace(self, entries=tuple(next(order) if each.phase == "waiting" else each for each in self.entries))

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``queue.json``."""
        return {"v": 1, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Queue:
        """The queue of such values; an entry that is none is left out."""
        return cls(
            entries=_entries(data.get("entries")),
            on=data.get("on") is True,
            continue_ended=data.get("continue_ended") is True,
            paused_by=str(data.get("paused_by") or ""),
            leaving=_entries(data.get("leaving")),
        )


def shares_gpu(one: str | None, other: str | None) -> bool:
    """Whether two entries may want the same GPU."""
    return one is None or other is None or one == other


def _entries(rows: Any) -> tuple[Entry, ...]:
    listed = (_entry(row) for row in (rows if isinstance(rows, list | tuple) else ()))
    return tuple(entry for entry in listed if entry is not None)


def _entry(row: Any) -> Entry | None:
    if not isinstance(row, dict) or row.get("phase") not in PHASES or not ID.fullmatch(str(row.get("id"))):
        return None
    known = {field.name for field in fields(Entry)}
    try:
        return Entry(**{name: value for name, value in row.items() if name in known})
    except TypeError:
        return None
