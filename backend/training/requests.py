"""Receives what a person asks of a running trainer: by file from page or terminal, by signal where no file can be."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from backend.base.errors import WriteFailed
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.pause import Pause
from backend.runs.phase_progress import PhaseProgress

log = logging.getLogger(__name__)

_PAUSE_S = 0.1
_PAUSE_SIGN_S = 30.0
"""Between two signs of life of a run that waits."""


class StopRequested(Exception):
    """The run was asked to stop before training began; there is nothing to save yet."""


class Requests:
    """Requests of one run; cheap enough to be looked at in every batch and every denoising step."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._pause = Pause(control.folder)
        self._signalled = False
        self._stuck: set[str] = set()

    @property
    def stop(self) -> bool:
        """True once a stop was asked for; it stays asked."""
        return self._signalled or "stop" in self._pending()

    def take(self, name: str) -> bool:
        """True once for each time that ``save`` or ``sample`` was asked for."""
        pending = self._pending()
        self._stuck &= pending
        if name not in pending - self._stuck:
            return False
        try:
            self._control.clear(name)
        except OSError as error:
            log.warning("The request to %s can't be marked as done: %s", name, error)
            self._stuck.add(name)
        return True

    def wait_while_paused(self, leave: Callable[[], AbstractContextManager[None]], events: EventWriter) -> bool:
        """Wait as long as a preview asks for it; whether one did. leave: frees the device meanwhile.

        A stop waits too: whoever asked sees it, and lets go of the device before this run needs it again. One that
        came by signal is written down for that.
        """
        word = self._pause.word()
        if word is None:
            return False
        log.info("Waiting while the preview draws")
        with PhaseProgress(events, "pause", every_s=_PAUSE_SIGN_S) as progress, leave():
            try:
                self._pause.answer(word)
                while self._pause.word() == word:
                    if self._signalled and "stop" not in self._pending():
                        self._control.request("stop")
                    time.sleep(_PAUSE_S)
                    progress.advance(0)
            except WriteFailed as error:
                log.warning("The run can't say that it waits for the preview, and continues: %s", error)
            finally:
                try:
                    self._pause.end()
                except OSError as error:
                    log.debug("The answer to the preview can't be removed: %s", error)
        return True

    def _pending(self) -> set[str]:
        """What is asked for; nothing while the disk of the run does not answer, for which no training should end."""
        try:
            return self._control.pending()
        except OSError as error:
            log.debug("The run's folder can't be read: %s", error)
            return set()

    def check(self) -> None:
        """Raise StopRequested when a stop was asked for: for the long work before the first step."""
        if self.stop:
            raise StopRequested

    def watched(self, progress: PhaseProgress) -> Callable[..., None]:
        """`progress.set`, which also raises StopRequested when a stop is asked for."""

        def advance(done: int, total: int, *_: object) -> None:
            self.check()
            progress.set(done, total)

        return advance

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Take the first INT, TERM, HUP or BREAK as a request to stop; a second one interrupts at once.

        A HUP comes when the terminal or the connection is gone; under nohup it stays ignored.
        """

        def handle(number: int, _: FrameType | None) -> None:
            if self._signalled:
                raise KeyboardInterrupt
            self._signalled = True
            log.warning("%s: saving and stopping; once more ends at once.", signal.Signals(number).name)

        # BREAK is how a console group is ended on Windows
        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
        kinds = [getattr(signal, name) for name in names if hasattr(signal, name)]
        kinds = [kind for kind in kinds if "HUP" not in kind.name or signal.getsignal(kind) != signal.SIG_IGN]
        before = {kind: signal.signal(kind, handle) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
