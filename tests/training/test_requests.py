"""Signals to a trainer: the first is a request to stop, the second ends at once."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.pause import Pause
from backend.training.requests import Requests, StopRequested

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_asks_and_the_second_interrupts(name: str, tmp_path: Path) -> None:
    kind, requests = getattr(signal, name), Requests(Control(tmp_path))
    before = signal.signal(kind, signal.default_int_handler)
    try:
        with requests.signals():
            assert not requests.stop
            os.kill(os.getpid(), kind)
            assert requests.stop
            with pytest.raises(StopRequested):
                requests.check()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), kind)
        assert signal.getsignal(kind) is signal.default_int_handler
    finally:
        signal.signal(kind, before)


def test_a_signal_ends_the_wait_for_a_preview_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, control, preview = Requests(Control(tmp_path)), Control(tmp_path), Pause(tmp_path)
    seen: list[set[str]] = []

    def look(_: float) -> None:
        """What a preview does between two pictures."""
        seen.append(control.pending())
        if "stop" in seen[-1] or len(seen) > 9:
            preview.release()

    monkeypatch.setattr(time, "sleep", look)
    with requests.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        preview.ask()
        assert requests.wait_while_paused(nullcontext, EventWriter(tmp_path / "events.jsonl"))
    assert seen == [{"stop"}]


def test_under_nohup_a_lost_terminal_is_no_request(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        requests = Requests(Control(tmp_path))
        with requests.signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not requests.stop
    finally:
        signal.signal(signal.SIGHUP, before)
