"""While the main thread compiles, another one says what."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from backend.compile.telemetry import Telemetry
from backend.pulse import CompilePulse
from backend.runs.events import EventWriter, read_events


def test_the_events_name_what_is_being_compiled(tmp_path: Path) -> None:
    def slow_backend(graph: torch.fx.GraphModule, _: object) -> object:
        time.sleep(0.4)
        return graph.forward

    torch._dynamo.reset()
    telemetry = Telemetry().start()
    path = tmp_path / "events.jsonl"
    block = nn.Linear(4, 4)
    try:
        with CompilePulse(telemetry, EventWriter(path), every_s=0.02):
            torch.compile(block.forward, backend=slow_backend)(torch.ones(2, 4))
    finally:
        telemetry.stop()
        torch._dynamo.reset()
    told = [event["compiling"] for event in read_events(path)[0] if event["kind"] == "compile"]
    assert told[0] is not None and told[-1] is None


def test_nothing_is_said_while_nothing_compiles(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with CompilePulse(Telemetry(), EventWriter(path), every_s=0.02):
        time.sleep(0.1)
    assert read_events(path) == ([], 0)
