"""Starts the entries of a queue, one at a time a GPU: ``python -m backend.queue.worker FOLDER``.

A process of its own, so that the queue continues without the page. It ends when there is nothing to start and none of
its runs is at work; `backend.queue.process` starts it again when there is.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from backend.base.errors import WriteFailed
from backend.base.files import locked, write_atomic
from backend.base.jsonable import dumps
from backend.base.paths import resolve
from backend.config.schema import Config
from backend.queue.disk import shared_by_next, shared_by_next_start
from backend.queue.entries import Entry, Queue, shares_gpu
from backend.queue.folder import QueueFolder
from backend.queue.notices import Notices
from backend.queue.process import is_needed
from backend.runs import record, supervise
from backend.runs.errors import RunBusy, RunError
from backend.runs.folder import Run, list_runs
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from backend.runs.process import ProcessId
from backend.runs.start_lock import one_start
from backend.runs.status import RunStatus
from backend.runs.status_reader import statuses

log = logging.getLogger(__name__)

_EVERY_S = 0.5
# All runs are looked at for one that is at work.
_AFTER_BUSY_S = 3.0
_AFTER_ERROR_S = 10.0
_LEAVING_S = 60.0
# A run that ends without a word again and again, and never comes further, is left as it is.
_MOST_RESTARTS = 3
# From here on an exit code of Windows is a fault, such as an access to memory that is not there.
_WINDOWS_FAULT = 0x80000000


@dataclass(kw_only=True, slots=True)
class Worker:
    """Looks at the queue again and again, and does what is due."""

    folder: QueueFolder
    roots: Sequence[Path]
    preview: Path | None = None
    notices: Notices = field(default_factory=Notices)
    _next_try: dict[str, float] = field(default_factory=dict)

    def work(self) -> None:
        """Work until nothing is left to do. What can't be done now, as on a full disk, is tried again."""
        while True:
            try:
                self.look()
                if not self.notices.look() and not is_needed(self.folder) and self._leave():
                    return
            except Exception:
                log.exception("The queue can't go on now and tries again in %g seconds.", _AFTER_ERROR_S)
                time.sleep(_AFTER_ERROR_S)
            time.sleep(_EVERY_S)

    def look(self) -> None:
        """Note which runs have ended, then start what may start now."""
        for entry in self.folder.read().entries:
            if entry.phase == "started":
                self._follow(entry)
        for entry in self.folder.read().leaving:
            self._see_off(entry)
        queue = self.folder.read()
        if not queue.on:
            return
        taken = [entry.gpu for entry in (*queue.entries, *queue.leaving) if entry.phase == "started"]
        for entry in queue.waiting():
            if not any(shares_gpu(entry.gpu, gpu) for gpu in taken):
                self._start(entry)
                if not self.folder.read().on:  # it has paused itself
                    return
            taken.append(entry.gpu)  # whoever comes later waits for it

    def _follow(self, entry: Entry) -> None:
        """Note the end of a run, or that it is to be continued."""
        run = _run_of(entry)
        if run is None or not run.path.is_dir():
            self._change(entry, phase="ended")
            return
        current = run.record()
        if current.get("start") == entry.before:  # its start was cut off before there was a trainer
            self._change(entry, phase="waiting")
            return
        if run.is_at_work() or _is_leaving(run, current):
            return
        (status,) = statuses([run])
        if status.active:
            return
        if _ended_without_a_word(status) and self.folder.read().continue_ended:
            step = status.state_step or 0
            restarts = 0 if step > entry.reached else entry.restarts
            if restarts < _MOST_RESTARTS:
                log.info("%s ended without a word and is continued.", run.name)
                again = {"resume": status.resumable, "restarts": restarts + 1, "reached": step}
                self._change(entry, first=True, phase="waiting", **again)
                return
        log.info("%s: %s", run.name, status.text)
        if self._change(entry, phase="ended"):
            self._pause(run.name, shared_by_next(status))
            self._notify(run.name, status.state, status.text, str(run.path))

    def _see_off(self, entry: Entry) -> None:
        """Tell the end of an entry that was taken off the list, once its process has left."""
        run = _run_of(entry)
        current = {} if run is None or not run.path.is_dir() else run.record()
        if run is not None and (run.is_at_work() or _is_leaving(run, current)):
            return
        if run is not None and current.get("start") not in (None, entry.before):
            (status,) = statuses([run])
            if status.active:
                return
            self._notify(run.name, status.state, status.text, str(run.path))
        self.folder.update(lambda queue: queue.left(entry.id))

    def _pause(self, name: str, why: str) -> None:
        """Pause the queue where the next run would fail as `name` did. why: as `shared_by_next` gives it."""

        def change(queue: Queue) -> Queue:
            if not (queue.on and queue.waiting()):
                return queue
            text = f"{name} failed because {why}"
            log.warning("The queue pauses: %s", text)
            return replace(queue, on=False, paused_by=text)

        if why:
            self.folder.update(change)

    def _start(self, entry: Entry) -> None:
        """Start a run if its GPU is free; one that can't be started has ended, and its entry says why."""
        loaded = self.folder.config(entry.id)
        if loaded.config is None:
            self._fail(entry, " ".join(problem.sentence() for problem in loaded.problems))
            return
        if time.monotonic() < self._next_try.get(entry.id, 0.0):
            return
        try:
            with one_start(self._runs, but=_run_of(entry), gpus=entry.gpu):
                self._begin(entry, loaded.config)
        except RunBusy as busy:
            if entry.id not in self._next_try:
                log.info("%s waits: %s", entry.name, busy.text)
            self._next_try[entry.id] = time.monotonic() + _AFTER_BUSY_S
        except (RunError, OSError, psutil.Error) as wrong:
            self._fail(entry, str(wrong))
            self._pause(entry.name, shared_by_next_start(wrong, resolve(loaded.config.saving.output_dir)))

    def _begin(self, entry: Entry, config: Config) -> None:
        known = _run_of(entry)
        run, resume = known, False
        if known is not None and "start" in known.record():
            if known.is_at_work():  # a person has resumed it, and it is followed from here on
                self._change(entry, phase="started", before=None)
                return
            (status,) = statuses([known])
            if status.state == "done":
                self._change(entry, phase="ended")
                return
            resume = entry.resume and status.resumable
            run = known if resume else None  # a run that was trained is never begun again in its own folder
        made = run is None or not run.path.is_dir()
        run = Run.create(config) if run is None or made else run
        claimed = False
        try:
            claimed = self._change(entry, phase="started", run=str(run.path), before=run.record().get("start"))
        finally:
            if made and not claimed:
                run.discard()
        if not claimed:  # it was paused, changed or removed in the meantime
            return
        if self.preview is not None:
            give_gpu_back(PreviewFolder(self.preview))
        supervise.start(None, run, resume=resume, environment=_environment(entry))
        log.info("%s %s.", run.name, "continues" if resume else "starts")

    def _change(self, entry: Entry, first: bool = False, **fields: Any) -> bool:
        """Change an entry, unless a person has changed it since it was read; whether that was done.

        first: it becomes the next one. An entry is started only while the queue is on.
        """
        done = False

        def change(queue: Queue) -> Queue:
            nonlocal done
            done = queue.of(entry.id) == entry and (queue.on or fields["phase"] != "started")
            if not done:
                return queue
            changed = queue.changed(entry.id, lambda known: replace(known, **fields))
            return changed.moved(entry.id, 0) if first else changed

        self.folder.update(change)
        return done

    def _fail(self, entry: Entry, text: str) -> None:
        """Note that an entry can't be started."""
        log.warning("%s can't be started: %s", entry.name, text)
        self.folder.update(
            lambda queue: queue.changed(entry.id, lambda known: replace(known, phase="ended", failure=text))
        )
        self._notify(entry.name, "failed", text, entry.run or "")

    def _runs(self) -> list[Run]:
        own = [Run(entry.run) for entry in self.folder.read().entries if entry.run is not None]
        roots = dict.fromkeys([*self.roots, *self.folder.roots()])
        return [*own, *(run for root in roots for run in list_runs(root))]

    def _notify(self, name: str, state: str, text: str, path: str) -> None:
        """Start a person's own command, which learns from its environment what has ended."""
        command = self.folder.command()
        if command:
            left = str(len(self.folder.read().waiting()))
            self.notices.send(command, {"RUN": name, "STATE": state, "TEXT": text, "FOLDER": path, "WAITING": left})

    def _leave(self) -> bool:
        """Leave under the queue's lock, so that nobody adds an entry and takes this process for its worker."""
        with locked(self.folder.lock_path):
            if is_needed(self.folder):
                return False
            self.folder.worker_path.unlink(missing_ok=True)
            return True


def _run_of(entry: Entry) -> Run | None:
    return None if entry.run is None else Run(entry.run)


def _ended_without_a_word(status: RunStatus) -> bool:
    """Whether the system ended the trainer: by a signal, a power cut, or for lack of RAM."""
    code = status.exit_code or 0
    return status.state == "dead" or (status.state == "failed" and (code < 0 or code >= _WINDOWS_FAULT))


def _is_leaving(run: Run, current: Mapping[str, Any]) -> bool:
    """Whether a trainer that has written its end still holds memory: taking its libraries down takes seconds more."""
    return run.is_alive(current) and abs(time.time() - record.number(current, "ended")) < _LEAVING_S


def _environment(entry: Entry) -> dict[str, str]:
    """What lets a trainer see the entry's GPU alone, by the number that nvidia-smi lists it under."""
    return {} if entry.gpu is None else {"CUDA_VISIBLE_DEVICES": entry.gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def main() -> None:
    """Work on the queue in a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=Path, action="append", default=[])
    parser.add_argument("--preview", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    folder = QueueFolder(options.folder)
    try:
        # never two at once, whatever became of worker.json; one that is about to leave is waited for
        with locked(folder.worker_lock_path):
            write_atomic(folder.worker_path, dumps(ProcessId.of(os.getpid()).to_record()))
            Worker(folder=folder, roots=options.runs, preview=options.preview).work()
    except WriteFailed as error:
        log.warning("This process ends, since another one may work on the queue: %s", error)


if __name__ == "__main__":
    main()
