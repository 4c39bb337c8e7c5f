"""Starts the entries of a queue, one at a time a GPU: ``python -m backend.queue.worker FOLDER``.

A process of its own, so that the queue goes on without the page. It ends when there is nothing to start and none of its
runs is at work; `backend.queue.process` starts it again when there is.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.base.errors import WriteFailed
from backend.base.files import locked
from backend.config.schema import Config
from backend.queue.entries import Entry, Queue, shares_gpu
from backend.queue.folder import QueueFolder
from backend.queue.process import is_needed
from backend.runs import supervise
from backend.runs.errors import RunBusy, RunError
from backend.runs.folder import Run, list_runs
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from backend.runs.start_lock import one_start
from backend.runs.status import RunStatus

log = logging.getLogger(__name__)

_EVERY_S = 0.5
# A run that ends without a word again and again, and never comes further, is left as it is.
_MOST_RESTARTS = 3
_COMMAND_S = 60.0


@dataclass(kw_only=True, slots=True)
class Worker:
    """Looks at the queue again and again, and does what is due."""

    folder: QueueFolder
    roots: Sequence[Path]
    preview: Path | None = None
    _busy: set[str] = field(default_factory=set)

    def work(self) -> None:
        """Work until nothing is left to do."""
        while True:
            self.look()
            if not is_needed(self.folder) and self._leave():
                return
            time.sleep(_EVERY_S)

    def look(self) -> None:
        """Note which runs have ended, then start what may start now."""
        for entry in self.folder.read().entries:
            if entry.phase == "started":
                self._follow(entry)
        queue = self.folder.read()
        if not queue.on:
            return
        taken = [entry.gpu for entry in queue.entries if entry.phase == "started"]
        for entry in queue.waiting():
            if not any(shares_gpu(entry.gpu, gpu) for gpu in taken):
                self._start(entry)
            taken.append(entry.gpu)  # whoever comes later waits for it

    def _follow(self, entry: Entry) -> None:
        """Note the end of a run, or that it is to be continued."""
        run = None if entry.run is None else Run(entry.run)
        if run is not None and run.path.is_dir():
            if "start" not in run.record():  # its start was cut off before there was a trainer
                self._change(entry, lambda known: replace(known, phase="waiting", resume=False))
                return
            status = run.status()
            if status.active:
                return
            if _ended_without_a_word(status) and self.folder.read().continue_ended:
                step = status.state_step or 0
                restarts = 0 if step > entry.reached else entry.restarts
                if restarts < _MOST_RESTARTS:
                    log.info("%s ended without a word and is continued.", run.name)
                    again = {"resume": status.resumable, "restarts": restarts + 1, "reached": step}
                    self._change(entry, lambda known: replace(known, phase="waiting", **again))
                    self.folder.update(lambda queue: queue.moved(entry.id, 0))
                    return
            log.info("%s: %s", run.name, status.text)
            self._change(entry, lambda known: replace(known, phase="ended"))
            self._notify(run.name, status.state, status.text, str(run.path))
        else:
            self._change(entry, lambda known: replace(known, phase="ended"))

    def _start(self, entry: Entry) -> None:
        """Start a run if its GPU is free; one that can't be started has ended, and says why in its own folder."""
        loaded = self.folder.config(entry.id)
        if loaded.config is None:
            text = " ".join(problem.sentence() for problem in loaded.problems)
            log.warning("%s can't be started: %s", entry.name, text)
            self._change(entry, lambda known: replace(known, phase="ended"))
            self._notify(entry.name, "failed", text, "")
            return
        try:
            with one_start(self._runs, but=_run_of(entry), gpus=entry.gpu):
                self._begin(entry, loaded.config)
        except RunBusy as busy:
            if entry.id not in self._busy:
                log.info("%s waits: %s", entry.name, busy.text)
            self._busy.add(entry.id)
        except (RunError, WriteFailed) as wrong:
            log.warning("%s can't be started: %s", entry.name, wrong)
            self._change(entry, lambda known: replace(known, phase="ended"))
            self._notify(entry.name, "failed", wrong.text, entry.run or "")

    def _begin(self, entry: Entry, config: Config) -> None:
        known = _run_of(entry)
        run = known if known is not None and known.path.is_dir() else Run.create(config)
        now = self._change(entry, lambda each: _started(each, run))
        if now.of(entry.id) is None:  # it was removed in the meantime
            if known is None:
                run.discard()
            return
        if self.preview is not None:
            give_gpu_back(PreviewFolder(self.preview))
        environment = {} if entry.gpu is None else {"CUDA_VISIBLE_DEVICES": entry.gpu}
        resume = entry.resume and run.status().resumable
        supervise.start(None, run, resume=resume, environment=environment)
        log.info("%s %s.", run.name, "continues" if resume else "starts")

    def _change(self, entry: Entry, change) -> Queue:  # noqa: ANN001 - as `Queue.changed`
        return self.folder.update(lambda queue: queue.changed(entry.id, change))

    def _runs(self) -> list[Run]:
        own = [Run(entry.run) for entry in self.folder.read().entries if entry.run is not None]
        return [*own, *(run for root in self.roots for run in list_runs(root))]

    def _notify(self, name: str, state: str, text: str, path: str) -> None:
        """Run a person's own command, which learns from its environment what has ended."""
        command = self.folder.command()
        if not command:
            return
        facts = {"RUN": name, "STATE": state, "TEXT": text, "FOLDER": path}
        left = len(self.folder.read().waiting())
        environment = os.environ | {f"MONOTILE_{key}": value for key, value in facts.items()}
        environment["MONOTILE_WAITING"] = str(left)
        try:
            subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=_COMMAND_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("The command for the end of a run failed: %s", error)

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
    return status.state == "dead" or (status.state == "failed" and (status.exit_code or 0) < 0)


def _started(entry: Entry, run: Run) -> Entry:
    return replace(entry, phase="started", run=str(run.path))


def main() -> None:
    """Work on the queue in a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=Path, action="append", default=[])
    parser.add_argument("--preview", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    Worker(folder=QueueFolder(options.folder), roots=options.runs, preview=options.preview).work()


if __name__ == "__main__":
    main()
