"""Sets up logging for a trainer process: lines for people in the run's ``log.txt``, without secrets."""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from backend.base.redact import redact
from backend.runs.folder import Run

log = logging.getLogger(__name__)

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
# These tell of each file they open and each request they make.
_CHATTY = ("urllib3", "filelock", "PIL", "matplotlib", "asyncio", "httpx", "httpcore", "fsspec", "h5py", "numba")
# It would like to download a kernel for CPUs, and warns of that wherever anything imports it.
_WRONG = ("bitsandbytes.backends.cpu.ops",)


class RedactingFormatter(logging.Formatter):
    """Formats a record, its traceback included, and hides secrets in the result."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class RedactingStream:
    """A text stream that hides secrets in what is written to it, for prints and progress bars of libraries.

    Text is held back until its line ends, since a secret may arrive in pieces.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._held = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._held += text
            cut = max(self._held.rfind("\n"), self._held.rfind("\r")) + 1
            if cut:
                self._stream.write(redact(self._held[:cut]))
                self._held = self._held[cut:]
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Write what is held back; the stream below stays open."""
        with self._lock:
            self._stream.write(redact(self._held))
            self._held = ""
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def configure_logging(run: Run, level: str = "info") -> None:
    """Send this process's logging to the run's ``log.txt``, and to the terminal where there is one.

    Uncaught exceptions, warnings and hard crashes (a segmentation fault) go there too. Called once, by the trainer's
    entry point.

    Args:
        run: whose ``log.txt``; made if missing.
        level: ``debug``, ``info``, ``warning`` or ``error``, for this project's and other modules alike.

    Raises:
        ValueError: no such level.
        OSError: the file can't be opened.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log_level {level!r} is not known; choose debug, info, warning or error")
    formatter = RedactingFormatter(FORMAT, DATE_FORMAT)
    file_handler = logging.FileHandler(run.log_path, mode="a", encoding="utf-8", errors="replace")
    handlers: list[logging.Handler] = [file_handler]
    if not _writes_to(sys.stderr, run.log_path):
        # Started by hand: the terminal sees the same lines. A spawned trainer's output already is log.txt.
        handlers.append(logging.StreamHandler(sys.stderr))
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(number)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    for name in _WRONG:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    faulthandler.enable(file_handler.stream, all_threads=True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, RedactingStream):
            redacting = RedactingStream(stream)
            atexit.register(redacting.close)
            setattr(sys, name, redacting)


def log_to_path_again(run: Run, before: os.stat_result) -> None:
    """Send this process's lines to the file that now lies at the run's ``log.txt``, where it was deleted or moved.

    before: what the old file was. Its descriptors themselves are turned to the new one, so that the crash handler and
    what libraries write by themselves follow too. OSError when the file can't be opened.
    """
    streams = [handler.stream for handler in logging.getLogger().handlers if isinstance(handler, logging.FileHandler)]
    descriptor = os.open(run.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        for stream in [*streams, sys.__stdout__, sys.__stderr__]:
            with suppress(OSError, ValueError, AttributeError):
                own = stream.fileno()  # type: ignore[union-attr]
                if os.path.samestat(os.fstat(own), before):
                    stream.flush()  # type: ignore[union-attr]
                    os.dup2(descriptor, own)
    finally:
        os.close(descriptor)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("The trainer stopped with an error.", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread is not None else "unknown"
        log.error("The thread %s stopped.", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _writes_to(stream: TextIO | None, path: Path) -> bool:
    try:
        return stream is not None and os.path.samestat(os.fstat(stream.fileno()), os.stat(path))
    except (OSError, ValueError, AttributeError):
        return False
