"""Reads the end of a run's ``log.txt``, and follows it, for page and terminal."""

from __future__ import annotations

import os
from pathlib import Path

from backend.base.files import open_file
from backend.base.redact import redact


def read_log(path: str | Path, offset: int = 0, max_bytes: int = 65536) -> tuple[str, int]:
    """Read the whole lines that were appended since ``offset``.

    Args:
        path: a ``log.txt``; a missing one is empty.
        offset: bytes already read.
        max_bytes: the most to read at once; of a longer rest only the newest part is read.

    Returns:
        Text with secrets hidden, and the offset for the next call. An unfinished line waits for the next call, unless
        it is longer than ``max_bytes``.
    """
    try:
        with open_file(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = offset if 0 <= offset <= size else 0
            skipped = size - begin > max_bytes
            begin = max(begin, size - max_bytes)
            stream.seek(begin)
            data = stream.read(max_bytes)
    except OSError:
        return "", 0
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) >= max_bytes:
        # A progress bar draws over one line for hours: what it drew last is shown, and what follows as it comes.
        end = data.rfind(b"\r") + 1 or len(data)
        return _clean(data[:end]) + "\n", begin + end
    first = data.find(b"\n") + 1 if skipped else 0
    return _clean(data[first:end]), begin + end


def tail_log(path: str | Path, lines: int = 200, max_bytes: int = 262144, since: int = 0) -> str:
    """The last ``lines`` lines of a log, the unfinished last one included, with secrets hidden.

    Args:
        path: a ``log.txt``; a missing one is empty.
        lines: how many.
        max_bytes: never read more than this from the file's end.
        since: leave out what stood before this byte offset, as the runs before a resume.
    """
    try:
        with open_file(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = max(size - max_bytes, min(since, size))
            stream.seek(begin)
            data = stream.read(max_bytes)
    except OSError:
        return ""
    text = _clean(data)
    kept = text.split("\n")
    ended = kept[-1] == ""
    return "\n".join(kept[-lines - 1 if ended else -lines :])


def _clean(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    # A progress bar draws over its own line: only what was drawn last stands.
    drawn = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return redact("\n".join(drawn))
