"""Changes a queue as a person asks: each function is one button of the page, or one word in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from backend.base.files import write_atomic
from backend.queue.entries import Entry, Queue
from backend.queue.folder import QueueFolder
from backend.runs import supervise
from backend.runs.errors import RunBusy, RunError, RunNotFound
from backend.runs.folder import Run
from backend.runs.record import FINAL


def set_on(folder: QueueFolder, on: bool) -> None:
    """Start or pause the queue. A run at work continues."""
    folder.update(lambda queue: replace(queue, on=on, paused_by=""))


def set_continue_ended(folder: QueueFolder, wanted: bool) -> None:
    """Continue, or leave, runs that end without a word."""
    folder.update(lambda queue: replace(queue, continue_ended=wanted))


def move(folder: QueueFolder, identity: str, by: int) -> None:
    """Move a waiting entry by so many places, up where negative."""

    def change(queue: Queue) -> Queue:
        _waiting(queue, identity)
        place = [entry.id for entry in queue.waiting()].index(identity)
        return queue.moved(identity, place + by)

    folder.update(change)


def run_now(folder: QueueFolder, identity: str) -> None:
    """Make a waiting entry the next one, and start the queue."""

    def change(queue: Queue) -> Queue:
        _waiting(queue, identity)
        return replace(queue.moved(identity, 0), on=True, paused_by="")

    folder.update(change)


def set_gpu(folder: QueueFolder, identity: str, gpu: str | None) -> None:
    """Choose the GPU of a waiting entry: its number, or None for any. RunError for what is no number."""
    check_gpu(gpu)
    _change(folder, identity, _waiting, lambda entry: replace(entry, gpu=gpu))


def check_gpu(gpu: str | None) -> None:
    """RunError for what is no number of a GPU; None is any."""
    if gpu is not None and not (gpu.isascii() and gpu.isdecimal()):
        raise RunError(f"{gpu!r} is no number of a GPU.", "Take one that nvidia-smi lists, such as 0.")


def skip(folder: QueueFolder, identity: str, stop: Callable[[Run], object] = supervise.stop_in_background) -> None:
    """Leave an entry out: one that waits is not started, one at work is stopped by `stop` and saves first."""
    entry = _known(folder.read(), identity)
    if entry.phase == "started":
        _refuse_starting(folder, entry)
    # also one that has ended, and that a person resumed by hand
    if entry.phase != "waiting" and entry.run is not None and Run(entry.run).is_at_work():
        stop(Run(entry.run))
        return
    if entry.phase in ("started", "ended"):
        raise RunError(f"{entry.name} has ended.", "Look at the list again.")
    _change(folder, identity, _waiting, lambda waiting: replace(waiting, phase="skipped"))


def retry(folder: QueueFolder, identity: str) -> None:
    """Let an entry wait again: it continues from its saved state where there is one, or else begins a new run."""
    entry = _known(folder.read(), identity)
    run = None if entry.run is None else Run(entry.run)
    here = run is not None and run.path.is_dir()
    if entry.phase == "waiting":
        raise RunError(f"{entry.name} is waiting already.", "Look at the list again.")
    if entry.phase == "started":
        _refuse_starting(folder, entry)
    if run is not None and here:
        status = run.status()
        if status.active:
            raise RunBusy(f"{run.name} is still running.", "Stop it first, or wait until it ends.")
        if status.state == "done":
            raise RunError(f"{run.name} has finished.", "Load its settings on the Library tab to train it again.")
        here = status.resumable
    path = entry.run if here else None
    again: dict = {"phase": "waiting", "run": path, "resume": here, "restarts": 0, "reached": 0, "failure": None}

    def unchanged(queue: Queue, identity: str) -> Entry:
        if queue.of(identity) != entry:
            raise RunBusy(f"{entry.name} has changed meanwhile.", "Look at the list again.")
        return entry

    _change(folder, identity, unchanged, lambda known: replace(known, **again))


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """An entry that was taken off the list, with all that puts it back."""

    entry: Entry
    place: int
    settings: bytes


def remove(folder: QueueFolder, identity: str) -> Removed:
    """Take an entry off the list; its run folder stays. RunBusy while it is at work."""
    removed: list[Removed] = []

    def change(queue: Queue) -> Queue:
        entry = _known(queue, identity)
        if entry.phase == "started":
            _refuse_starting(folder, entry)
            if entry.run is not None and Run(entry.run).is_at_work():
                raise RunBusy(f"{entry.name} is being trained.", "Stop it first.")
        path = folder.config_path(identity)
        settings = path.read_bytes() if path.is_file() else b""
        removed.append(Removed(entry=entry, place=queue.entries.index(entry), settings=settings))
        return queue.without(identity)

    folder.update(change)
    return removed[0]


def restore(folder: QueueFolder, removed: Removed) -> None:
    """Put an entry back to its place. Raises WriteFailed.

    One whose end was told meanwhile comes back as ended.
    """
    write_atomic(folder.config_path(removed.entry.id), removed.settings)

    def change(queue: Queue) -> Queue:
        entries = [entry for entry in queue.entries if entry.id != removed.entry.id]
        noted = removed.entry.phase == "started" and removed.entry not in queue.leaving
        entries.insert(removed.place, replace(removed.entry, phase="ended") if noted else removed.entry)
        return replace(queue.left(removed.entry.id), entries=tuple(entries))

    folder.update(change)


def remove_ended(folder: QueueFolder) -> None:
    """Take all entries off the list that have ended or were skipped.

    Also one whose run tells its end while the worker still waits for its process to leave.
    """

    def has_ended(entry: Entry) -> bool:
        if entry.phase != "started" or entry.run is None:
            return entry.phase not in ("waiting", "started")
        current = Run(entry.run).record()
        return str(current.get("state")) in FINAL and current.get("start") != entry.before

    folder.update(lambda queue: queue.without(*(entry.id for entry in queue.entries if has_ended(entry))))


def _change(
    folder: QueueFolder, identity: str, check: Callable[[Queue, str], Entry], change: Callable[[Entry], Entry]
) -> None:
    def under_lock(queue: Queue) -> Queue:
        check(queue, identity)
        return queue.changed(identity, change)

    folder.update(under_lock)


def _refuse_starting(folder: QueueFolder, entry: Entry) -> None:
    """RunBusy for an entry between the word that it starts and its trainer."""
    starts = entry.run is not None and Run(entry.run).record().get("start") == entry.before
    if starts and folder.is_alive():
        raise RunBusy(f"{entry.name} is being started.", "Wait a moment, then try again.")


def _known(queue: Queue, identity: str) -> Entry:
    entry = queue.of(identity)
    if entry is None:
        raise RunNotFound("This entry is no longer in the queue.", "Look at the list again.")
    return entry


def _waiting(queue: Queue, identity: str) -> Entry:
    entry = _known(queue, identity)
    if entry.phase != "waiting":
        raise RunBusy(f"{entry.name} does not wait any more.", "Look at the list again.")
    return entry
