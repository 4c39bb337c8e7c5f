"""Events survive crashes, torn lines and several writers; a reader sees each once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.runs.events import EventWriter, read_events
from backend.runs.events.kinds import (
    KINDS,
    CompiledShareEvent,
    CompileStateEvent,
    CompilingEvent,
    CudaGraphsEvent,
    DoneEvent,
    ErrorEvent,
    GraphEvent,
    MemoryPeakEvent,
    PhaseEvent,
    ResumedEvent,
    SampleEvent,
    StateEvent,
    StoppedEvent,
    ValidationEvent,
    WarningEvent,
    to_fields,
)
from backend.runs.events.log import VERSION
from tests.tiny.event_lines import event_lines

ROOT = Path(__file__).resolve().parents[2]


def test_events_come_back_as_written(run):
    writer = EventWriter(run)
    writer.write(PhaseEvent(phase="scan", done=3, total=9, eta_s=1.5))
    writer.write(SampleEvent(step=5, prompt_index=0, file="samples/a.png", prompt="a „fox“\nrunning"))
    (first, second), offset = read_events(run.events_path)
    assert first.t > 1.6e9 and first == PhaseEvent(phase="scan", done=3, total=9, eta_s=1.5, t=first.t)
    assert second.file == "samples/a.png" and second.prompt == "a „fox“\nrunning"
    assert offset == run.events_path.stat().st_size


def test_each_kind_is_written_and_read_as_itself(run):
    usual = {str: "x", int: 1, float: 0.5, bool: True, dict: {"a": 1}, list: [1]}
    written = []
    for kind in KINDS:
        hints = {field.name: get_type_hints(kind)[field.name] for field in fields(kind) if field.name != "t"}
        plain = {name: (get_args(hint) or (hint,))[0] for name, hint in hints.items()}
        values = {name: usual.get(get_origin(hint) or hint, "recorded") for name, hint in plain.items()}
        written.append(kind(**values))
        EventWriter(run).write(written[-1])
    events, _ = read_events(run.events_path)
    assert [replace(event, t=0.0) for event in events] == written
    for line, event in zip(event_lines(run), written, strict=True):
        assert list(line)[:3] == ["v", "t", "kind"] and (line["v"], line["kind"]) == (VERSION, event.kind)
        assert {name: line[name] for name in list(line)[3:]} == to_fields(event)


# As versions before the typed events wrote them, and one of a later version.
EARLIER = (
    ({"kind": "compile", "compiling": None}, CompilingEvent(compiling=None)),
    ({"kind": "compile", "state": "off", "reason": None, "planned": 0}, CompileStateEvent(state="off", planned=0)),
    ({"kind": "compile", "share": 0.7}, CompiledShareEvent(share=0.7)),
    (
        {"kind": "compile", "graph": 2, "block": "double", "seconds": 1, "cached": False, "gradients": True},
        GraphEvent(graph=2, block="double", seconds=1, cached=False, gradients=True),
    ),
    ({"kind": "cuda_graphs", "state": "left out", "reason": "no"}, CudaGraphsEvent(state="left out", reason="no")),
    ({"kind": "memory_peak", "ram_peak": 5}, MemoryPeakEvent(ram_peak=5)),
    ({"kind": "stopped", "step": None}, StoppedEvent()),
    ({"kind": "state", "step": 4, "of a later version": [1]}, StateEvent(step=4)),
    ({"kind": "warning", "text": ["odd"], "remedy": None}, WarningEvent()),
    ({"kind": "phase", "phase": "train", "done": True, "total": 10**400, "eta_s": 1e308}, PhaseEvent(phase="train")),
)


@pytest.mark.parametrize(("line", "event"), EARLIER)
def test_events_of_other_versions_are_read(run, line, event):
    run.events_path.write_text(json.dumps({"v": 1, "t": 5.0, **line}) + "\n")
    assert read_events(run.events_path)[0] == [replace(event, t=5.0)]


def test_a_reader_with_an_offset_sees_each_event_once(run):
    writer, offset, seen = EventWriter(run), 0, []
    for step in range(20):
        writer.write(StateEvent(step=step))
        if step % 3 == 0:
            events, offset = read_events(run.events_path, offset)
            seen += events
    events, offset = read_events(run.events_path, offset)
    assert [event.step for event in seen + events] == list(range(20))
    assert read_events(run.events_path, offset) == ([], offset)


def test_no_file_and_a_file_that_was_replaced(run):
    assert read_events(run.events_path) == ([], 0)
    EventWriter(run).write(StateEvent(step=1))
    assert [e.step for e in read_events(run.events_path, offset=10_000)[0]] == [1]


def test_half_a_line_waits_and_costs_no_other(run):
    EventWriter(run).write(StateEvent(step=1))
    whole = run.events_path.stat().st_size
    with open(run.events_path, "ab") as stream:
        stream.write(b'{"v": 1, "t": 5, "kind": "sta')
    events, offset = read_events(run.events_path)
    assert len(events) == 1 and offset == whole
    # The trainer comes back after the crash: its first event is not glued to the torn one.
    EventWriter(run).write(ResumedEvent(step=1, generation=1))
    events, _ = read_events(run.events_path, offset)
    assert [event.kind for event in events] == ["resumed"]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 2000), count=st.integers(0, 8))
def test_any_cut_leaves_a_prefix(tmp_path_factory, cut, count):
    path = tmp_path_factory.mktemp("cut") / "events.jsonl"
    writer = EventWriter(path)
    for step in range(count):
        writer.write(WarningEvent(text=f"ü {step}", remedy="\x00\r\n" * step))
    data = path.read_bytes() if count else b""
    path.write_bytes(data[:cut])
    events, offset = read_events(path)
    assert [event.text for event in events] == [f"ü {n}" for n in range(data[:cut].count(b"\n"))]
    EventWriter(path).write(DoneEvent(step=9))
    # A line that lacks nothing but its end is whole again once another one follows.
    whole = ["warning"] * (data[cut : cut + 1] == b"\n")
    assert [event.kind for event in read_events(path, offset)[0]] == [*whole, "done"]


def test_several_processes_write_at_once(run):
    code = (
        "import sys\nfrom backend.runs.events import EventWriter\n"
        "from backend.runs.events.kinds import WarningEvent\n"
        "w = EventWriter(sys.argv[1])\n"
        "for n in range(150): w.write(WarningEvent(text=sys.argv[2] * 500, remedy=str(n)))\n"
    )
    command = [sys.executable, "-c", code, str(run.events_path)]
    workers = [subprocess.Popen([*command, letter], cwd=ROOT) for letter in "abc"]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    events, _ = read_events(run.events_path)
    assert len(events) == 450
    for letter in "abc":
        assert [e.remedy for e in events if e.text == letter * 500] == [str(n) for n in range(150)]


def test_what_a_browser_can_not_parse_is_not_written(run):
    class Scalar:
        def item(self):
            return float("inf")

    EventWriter(run).write(ValidationEvent(step=1, set="a", loss=float("nan"), sigma_losses={0.05: Scalar(), 0.1: {2}}))
    text = run.events_path.read_text()
    event = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert event["loss"] is None and event["sigma_losses"] == {"0.05": None, "0.1": [2]}


def test_lines_that_are_no_events_cost_themselves_alone(run):
    lines = ["[]", "nonsense", '{"kind": "state"}', '{"v": 99, "t": 1, "kind": "state", "step": 1}', ""]
    lines += ['{"v": 1, "t": 1, "kind": "later-kind"}', '{"v": 1, "t": 1, "kind": "state"}']
    run.events_path.write_text("\n".join(lines) + '\n{"v": 1, "t": 1, "kind": "state", "step": 3}\n')
    events, offset = read_events(run.events_path)
    assert events == [StateEvent(step=3, t=1)] and offset == run.events_path.stat().st_size


def test_a_disk_that_refuses_costs_the_event_and_not_the_training(run, caplog, monkeypatch):
    writer = EventWriter(run)
    writer.path = run.path / "no such folder" / "events.jsonl"
    writer.write(StateEvent(step=1))
    writer.write(StateEvent(step=2))
    assert len(caplog.records) == 1 and "could not be written" in caplog.text


def test_secrets_stay_out(run, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    EventWriter(run).write(
        ErrorEvent(
            text="401 for hf_abcdefghijklmnopqrstuvwxyz",
            exception="key 0123456789abcdef0123456789abcdef01234567",
        )
    )
    text = run.events_path.read_text()
    assert "hf_abc" not in text and "0123456789abcdef" not in text and text.count("[hidden]") == 2
