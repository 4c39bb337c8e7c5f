"""While the main thread compiles, another one says what."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from backend.compile.telemetry import Telemetry
from backend.runs.events import EventWriter
from backend.training.compile_progress import CompileProgress
from tests.tiny.event_lines import event_lines


def test_the_events_name_what_is_being_compiled(tmp_path: Path) -> None:
    def slow_backend(graph: torch.fx.GraphModule, _: object) -> object:
        time.sleep(0.4)
        return graph.forward

    torch._dynamo.reset()
    telemetry = Telemetry().start()
    path = tmp_path / "events.jsonl"
    block = nn.Linear(4, 4)
    try:
        with CompileProgress(telemetry=telemetry, events=EventWriter(path), every_s=0.02):
            torch.compile(block.forward, backend=slow_backend)(torch.ones(2, 4))
            # Nothing polls the telemetry before the first step, and still the graph is told.
            wait_until(lambda: any("graph" in event for event in event_lines(path)))
    finally:
        telemetry.stop()
        torch._dynamo.reset()
    events = event_lines(path)
    names = [event["compiling"] for event in events if "compiling" in event]
    assert names[0] is not None and names[-1] is None
    assert [event["graph"] for event in events if "graph" in event] == [1]


def wait_until(so: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not so() and time.monotonic() < end:
        time.sleep(0.02)


def test_nothing_is_said_while_nothing_compiles(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    telemetry = Telemetry().start()
    with CompileProgress(telemetry=telemetry, events=EventWriter(path), every_s=0.02):
        time.sleep(0.1)
    telemetry.stop()
    assert event_lines(path) == []
