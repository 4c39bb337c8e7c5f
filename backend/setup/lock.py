"""Locks the set-up: one launcher installs at a time, a second one waits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.setup.errors import SetupError
from backend.setup.report import Report


def _try_lock(handle: int) -> bool:
    if os.name == "nt":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network disks have no locks: there a person must start only one launcher at a time.
        pass
    return True


@contextmanager
def exclusive(path: Path, report: Report) -> Iterator[int]:
    """Hold the lock file `path`, waiting while another process does. Yields its descriptor.

    The lock belongs to the open file: it ends with the process, so a killed launcher leaves none behind. A pip that is
    given the descriptor keeps it until it ends too, even when the launcher above it is gone.
    Raises SetupError where the file can't be written.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SetupError(
            f"{path.parent} can't be written ({error.strerror}), and the set-up must write there. Move Monotile to a "
            "folder of yours, or start it as the user who owns that folder."
        ) from None
    try:
        if not _try_lock(handle):
            report.line("Another launcher is already installing. Waiting for it.")
            while not _try_lock(handle):
                time.sleep(0.5)
        yield handle
    finally:
        os.close(handle)
