"""Shows the set-up's progress: lines that stay, and one line that is replaced."""

from __future__ import annotations

import os
import shutil
import time
from typing import TextIO

QUIET_S = 20.0
"""Seconds between two progress lines where the output is not a terminal, such as CI."""


class Report:
    """Writes to `stream`; on a terminal progress is one line written over, elsewhere a line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
        self._open = False
        self._last = 0.0

    def line(self, text: str) -> None:
        """A line that stays."""
        self._close()
        self._write(text + "\n")
        self._last = time.monotonic()

    def progress(self, text: str) -> None:
        """What is happening now; replaced by the next one."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + text[:width])
            self._open = True
        elif time.monotonic() - self._last >= QUIET_S:
            self.line(text)

    def _close(self) -> None:
        if self._open:
            self._write("\r\x1b[K")
            self._open = False

    def _write(self, text: str) -> None:
        # A console that can't show a character of a path shows a question mark; that must not end the set-up.
        encoding = self._stream.encoding or "ascii"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


def span(seconds: float) -> str:
    """Seconds in words: '40 s', '2 min 10 s'."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
