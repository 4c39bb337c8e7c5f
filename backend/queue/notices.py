"""Runs a person's own command at the end of each entry, beside the queue's work."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

_LONGEST_S = 60.0


@dataclass(kw_only=True, slots=True)
class Notices:
    """The commands that are at work. longest_s: after so many seconds one is ended."""

    longest_s: float = _LONGEST_S
    _at_work: list[tuple[subprocess.Popen[bytes], float]] = field(default_factory=list)

    def send(self, command: Sequence[str], facts: Mapping[str, str]) -> None:
        """Start a command, which learns from its environment what has ended: MONOTILE_ and a fact's name."""
        environment = os.environ | {f"MONOTILE_{name}": value for name, value in facts.items()}
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        except (OSError, ValueError) as error:
            log.warning("The command for the end of a run can't be started: %s", error)
            return
        self._at_work.append((process, time.monotonic() + self.longest_s))

    def look(self) -> bool:
        """See to those that have ended or take too long; whether one is still at work."""
        left = []
        for process, until in self._at_work:
            code = process.poll()
            if code is None and time.monotonic() < until:
                left.append((process, until))
            elif code is None:
                process.kill()
                process.wait()
                log.warning("The command for the end of a run was ended: it took more than %g s.", self.longest_s)
            elif code:
                log.warning("The command for the end of a run failed with exit code %s.", code)
        self._at_work = left
        return bool(left)
