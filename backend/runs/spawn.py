"""Starts a process that outlives the program that started it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def spawn_detached(command: Sequence[str], output: object, environment: Mapping[str, str]) -> subprocess.Popen:
    """Start `command` in the project's folder so that it outlives this process, with nothing to read.

    output: a file for all that it says. OSError where it can't be started.
    """
    common = {
        "stdin": subprocess.DEVNULL,
        "stdout": output,
        "stderr": subprocess.STDOUT,
        "cwd": _ROOT,
        "env": dict(environment),
    }
    if sys.platform != "win32":
        return subprocess.Popen(list(command), start_new_session=True, **common)
    # A console of its own: closing the launcher's window would end a trainer that shares it.
    flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    with suppress(PermissionError):
        # Leave the job of an editor or terminal that ends all its processes when it closes, where that is allowed.
        return subprocess.Popen(list(command), creationflags=flags | subprocess.CREATE_BREAKAWAY_FROM_JOB, **common)
    return subprocess.Popen(list(command), creationflags=flags, **common)
