"""What a run's folder adds up to: state, phase, progress, time left."""

from __future__ import annotations

import json
import os
import time

import pytest

from backend.runs.control import Control
from backend.runs.eta import spoken, step_seconds
from backend.runs.events import EventWriter
from backend.runs.events.kinds import DoneEvent, ErrorEvent, PhaseEvent, StepTotalEvent, WarningEvent
from backend.runs.metrics import MetricsWriter
from backend.runs.phase_progress import PhaseProgress
from backend.runs.process import ProcessId
from backend.runs.status_reader import StatusReader, statuses
from tests.tiny.event_lines import event_lines
from tests.tiny.runs import save_state, set_fields


@pytest.fixture
def live(run, monkeypatch):
    """A run whose trainer is this very process."""
    monkeypatch.setenv("MONOTILE_RUN", "")
    run.attach()
    return run


def row(step, seconds, generation=0, **more):
    return {"step": step, "generation": generation, "s_per_step": seconds, **more}


def test_time_left_leaves_out_first_steps_and_compiles():
    slow_start = [row(1, 60.0), row(2, 9.0), row(3, 2.0)]
    assert step_seconds([]) is None and step_seconds(slow_start) is None
    steady = slow_start + [row(step, 0.5) for step in range(4, 10)]
    assert step_seconds(steady) == 0.5
    # A resume warms up again.
    resumed = [row(step, 0.5) for step in range(90, 101)] + [row(step, 30.0, 1) for step in (101, 102, 103)]
    assert step_seconds(resumed, start_step=100) is None
    assert step_seconds([*resumed, row(104, 0.7, 1)], start_step=100) == 0.7
    # Recompiles half-way, as many as ordinary steps: the median alone would not do.
    compiling, seconds = [], 30.0
    for step in range(10, 30):
        seconds += 12.0 * (step % 2)
        compiling.append(row(step, 13.0 if step % 2 else 1.0, compile_seconds=seconds))
    assert step_seconds(compiling) == 1.0


def test_time_left_is_that_of_recent_steps():
    rows = [row(step, 1.0) for step in range(1, 101)] + [row(step, 3.0) for step in range(101, 200)]
    assert step_seconds(rows) == 3.0
    assert step_seconds([row(step, None) for step in range(1, 50)]) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (64, "1 min 04 s"), (725, "12 min"), (3900, "1 h 05 min"), (100_000, "1 d 3 h")],
)
def test_durations_in_words(seconds, words):
    assert spoken(seconds) == words


def test_phases_before_training_tell_their_own_progress(live):
    events, reader = EventWriter(live), StatusReader(live)
    assert reader.read().state == "starting" and reader.read().text == "Starting."
    events.write(PhaseEvent(phase="cache_latents", done=120, total=400, eta_s=70.0))
    status = reader.read()
    assert (status.state, status.phase, status.done, status.total, status.eta_s) == (
        "running", "cache_latents", 120, 400, 70.0
    )  # fmt: skip
    assert status.text == "Encoding images: 120 of 400, about 1 min 10 s left."
    events.write(PhaseEvent(phase="compile", done=None, total=None, eta_s=None))
    assert reader.read().text == "Compiling."
    events.write(PhaseEvent(phase="sample", done=1, total=4, eta_s=8.0))
    assert reader.read().eta_s == 8.0


def test_training_tells_steps_and_what_is_left_and_so_do_the_pauses_in_it(live):
    events, reader = EventWriter(live), StatusReader(live)
    events.write(StepTotalEvent(total=1600))
    events.write(PhaseEvent(phase="train"))
    with MetricsWriter(live, live.begin_generation()) as metrics:
        for step in range(1, 101):
            metrics.add(step, loss=1.0, s_per_step=50.0 if step == 1 else 0.5)
    status = reader.read()
    assert (status.step, status.total_steps, status.done, status.total) == (100, 1600, 100, 1600)
    assert (status.s_per_step, status.eta_s) == (0.5, 750.0)
    assert status.text == "Training: step 100 of 1600, about 12 min left."
    events.write(PhaseEvent(phase="sample", done=1, total=4, eta_s=8.0))
    status = reader.read()
    assert (status.done, status.total, status.eta_s) == (1, 4, 750.0)
    assert status.text == "Drawing sample images: 1 of 4, about 12 min left."


def test_warnings_and_the_saved_step_are_kept(live):
    events = EventWriter(live)
    events.write(WarningEvent(text="Two images were skipped.", remedy="See the Dataset tab."))
    save_state(live, 400)
    status = live.status()
    assert status.warnings == ({"text": "Two images were skipped.", "remedy": "See the Dataset tab."},)
    assert status.state_step == 400 and not status.resumable  # it is still training


def test_a_reader_kept_for_long_equals_a_fresh_one(live):
    reader, events = StatusReader(live), EventWriter(live)
    for number in range(5):
        events.write(PhaseEvent(phase="load", done=number, total=5))
        kept, fresh = reader.read().to_dict(), live.status().to_dict()
        assert kept | {"elapsed_s": 0} == fresh | {"elapsed_s": 0}


def test_a_new_start_forgets_the_old_but_not_what_was_saved(live):
    reader, events = StatusReader(live), EventWriter(live)
    events.write(StepTotalEvent(total=50))
    save_state(live, 30)
    events.write(ErrorEvent(text="It broke.", cause="", remedy="", exception=None))
    live.finish("failed", error={"text": "It broke."})
    assert reader.read().error.text == "It broke."
    set_fields(live.record_path, pid=None)
    live.prepare_start(["again"])
    status = reader.read()
    assert (status.state, status.error, status.state_step, status.total_steps) == ("starting", None, 30, 50)


def test_requests_to_stop_show(live):
    EventWriter(live).write(PhaseEvent(phase="train"))
    assert live.status().state == "running"
    Control(live).request("save")
    assert live.status().state == "running"
    Control(live).request("stop")
    assert live.status().state == "stopping"


def test_a_run_that_was_made_and_never_started(run):
    assert run.status().state == "starting"
    set_fields(run.record_path, created=time.time() - 3600)
    status = run.status()
    assert status.state == "dead" and status.error.text == "This run was never started."


def test_an_end_that_only_the_events_know(run):
    set_fields(run.record_path, pid=2**22 - 1, create_time=5.0, started=5.0, exit_code=0)
    EventWriter(run).write(DoneEvent(step=9))
    assert run.status().state == "done"


def test_a_broken_record_is_no_crash(run):
    run.record_path.write_text("{half")
    (status,) = statuses([run])
    assert status.state == "dead" and status.error is not None


def test_json_has_everything_and_only_what_json_can_say(live):
    EventWriter(live).write(PhaseEvent(phase="scan", done=1, total=float("nan")))
    values = json.loads(json.dumps(live.status().to_dict(), allow_nan=False))
    assert values["name"] == live.name and values["path"] == str(live.path)
    assert values["active"] is True and values["state"] == "running" and values["total"] is None


def test_progress_writes_seldom_and_ends_with_the_whole(run):
    with PhaseProgress(EventWriter(run), "cache_latents", total=500, every_s=3600) as progress:
        for _ in range(500):
            progress.advance()
    events = event_lines(run)
    assert [(event["phase"], event["done"], event["total"]) for event in events] == [
        ("cache_latents", 0, 500), ("cache_latents", 500, 500)
    ]  # fmt: skip
    assert events[1]["eta_s"] == 0


def test_progress_of_the_present_rate(run, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("backend.runs.phase_progress.time.monotonic", lambda: now[0])
    progress = PhaseProgress(EventWriter(run), "cache_latents", total=1000)
    now[0] += 300.0
    progress.set(900)  # found in the cache, after what is compiled at the first of all
    assert progress.eta_s() is None
    for _ in range(60):
        now[0] += 1.0
        progress.advance()  # encoded, one a second
    assert 35 < progress.eta_s() < 45
    progress.set(10, total=20)
    assert event_lines(run)[-1]["done"] == 960  # nothing was told within the second


def test_a_phase_that_failed_does_not_look_finished(run):
    with pytest.raises(KeyError), PhaseProgress(EventWriter(run), "scan", total=5, every_s=3600) as progress:
        progress.advance(5)
        raise KeyError
    assert [event["done"] for event in event_lines(run)] == [0]


def test_last_words_in_the_log_make_a_failure_of_an_unseen_end(run):
    set_fields(run.record_path, pid=2**22 - 1, create_time=5.0, started=5.0)
    run.log_path.write_text('Traceback (most recent call last):\n  File "x"\nMemoryError\n')
    status = run.status()
    assert status.state == "failed" and status.error.text == "The machine ran out of memory (RAM)."
    run.log_path.write_text("all is well\n")
    assert run.status().state == "dead"


def test_a_process_that_enters_the_record_between_two_looks_is_alive(run, monkeypatch):
    """Its pid is written a moment after the start; who read the record before must not take it for dead."""
    monkeypatch.setenv("MONOTILE_RUN", "")
    run.prepare_start(["x"])
    early = run.record()
    set_fields(run.record_path, **ProcessId.of(os.getpid()).to_record())
    looks = iter([early])
    monkeypatch.setattr(run, "record", lambda: next(looks, None) or type(run).record(run))
    assert StatusReader(run).read().state == "starting"
