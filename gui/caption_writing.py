"""Writes the captions of many images in the background, one piece of work at a time, with progress, a stop and undo."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backend.base.errors import Refused, WriteFailed
from backend.dataset.caption_changes import Applied
from backend.dataset.caption_journal import Journal
from backend.dataset.items import count_of
from gui import messages
from gui.caption_refresh import undo_on_page
from gui.dataset_scan import PageScan

log = logging.getLogger(__name__)


class Cancelled(Exception):
    """The person stopped the work, and nothing of it is left."""


@dataclass
class Work:
    """What is written in the background, and how that went."""

    state: str = "idle"  # "idle", "running", "done", "failed", "cancelled"
    number: int = 0
    done: int = 0
    total: int = 0
    text: str = ""
    made: str = ""
    """Id of the changes that it made, which undoes them; "" for none."""
    began: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def progress(self, done: int, total: int) -> None:
        """Take over how far it is. Cancelled when the person stopped it."""
        self.count(done, total)
        if self.stop.is_set():
            raise Cancelled

    def count(self, done: int, total: int) -> None:
        """Take over how far it is, whatever the person wants."""
        self.done, self.total = done, total

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before it is known."""
        took = time.monotonic() - self.began
        return None if self.done < 10 or self.state != "running" else took / self.done * (self.total - self.done)


class CaptionWriter:
    """One piece of work at a time, and what can be undone."""

    def __init__(self, scan: PageScan) -> None:
        self.scan = scan
        self.folder = scan.folder / "caption_changes"
        """Of the journal."""
        self.work = Work()
        self._lock = threading.Lock()

    def run(self, write: Callable[[Work], str]) -> None:
        """Do `write` in the background; it returns what it did, in words. Refused when other work runs."""
        with self._lock:
            if self.work.state == "running":
                raise Refused("Captions are being changed", "Wait until that is done")
            work = self.work = Work("running", self.work.number + 1, began=time.monotonic())
        threading.Thread(target=self._follow, args=(work, write), name="captions", daemon=True).start()

    def start_undo(self, name: str) -> None:
        """Undo changes of the journal in the background. Refused when other work runs."""

        def write(work: Work) -> str:
            undone = undo_on_page(self.scan, name, self.folder, work.count)
            return f"Files restored: {len(undone.files):,}.{changed_meanwhile(len(undone.left))}"

        self.run(write)

    def facts(self) -> dict[str, Any]:
        """How far the work is, and which changes can be undone."""
        work, newest = self.work, Journal.at(self.folder).newest()
        undoable = None
        if newest is not None and work.state != "running":
            undoable = {
                "id": newest.id, "what": newest.what, "files": newest.files, "at": newest.at,
                "cut_off": newest.state == "cut off",
            }  # fmt: skip
        return {
            "state": work.state,
            "number": work.number,
            "done": work.done,
            "total": work.total,
            "text": work.text,
            "made": work.made,
            "seconds_left": work.seconds_left,
            "undo": undoable,
        }

    def _follow(self, work: Work, write: Callable[[Work], str]) -> None:
        try:
            work.text = write(work)
            work.state = "done"
        except Cancelled:
            work.text, work.state = "Cancelled. All captions are as they were before.", "cancelled"
        except (Refused, WriteFailed, OSError) as error:
            work.text, work.state = messages.words(error), "failed"
        except Exception:
            log.exception("Captions could not be changed")
            work.text, work.state = "The captions could not be changed; the log of the page says why.", "failed"


def ending(applied: Applied) -> str:
    """What is said after the number of files that were written: of those that were not."""
    rest = f" Stopped; files that are not written: {applied.rest:,}." if applied.rest else ""
    return changed_meanwhile(len(applied.left)) + rest


def changed_meanwhile(count: int) -> str:
    """What is said of files that somebody changed since they were read; "" for none."""
    return f" {count_of(count, 'file')} changed meanwhile, and stayed as it is." if count else ""
