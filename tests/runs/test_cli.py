"""The terminal's view: status, stop, logs."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from backend.runs.cli import main
from backend.runs.events import EventWriter
from backend.runs.events.kinds import AttentionEvent, CudaGraphsEvent, DoneEvent, ErrorEvent, WarningEvent
from backend.runs.folder import Run
from backend.training.terminal import event_line
from tests.tiny.runs import ROOT, eventually, start


@pytest.fixture
def tell(runs_root):
    """Run one command; returns its exit status and what it wrote."""

    def call(*arguments: str) -> tuple[int, str]:
        stream = io.StringIO()
        code = main([*arguments, "--root", str(runs_root)], Console(file=stream, width=200))
        return code, stream.getvalue()

    return call


def module(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "backend.runs", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, **options)


def finished(run: Run, *arguments: object) -> Run:
    start("trainer", run, *arguments)
    eventually(lambda: "state" in run.record() and not run.is_alive(), "it ends")
    return run


def test_no_runs_yet(tell, runs_root):
    assert tell("status") == (0, f"There are no runs in {runs_root} yet.\n")
    assert json.loads(tell("status", "--json")[1]) == []
    code, text = tell("stop", "nothing")
    assert code == 2 and "There is no run named 'nothing'. There are no runs in" in text


def test_a_terminal_tells_what_was_measured():
    measured = AttentionEvent(route="flex", how="measured", milliseconds={"sdpa": 2.25, "flex": 2.09})
    assert event_line(measured) == "attention: flex, measured: sdpa 2.25 ms, flex 2.09 ms"
    assert event_line(AttentionEvent(route="sdpa")) == ""
    first = CudaGraphsEvent(state="recorded", shapes=1, plain_ms=620.4, replay_ms=133.8)
    assert event_line(first) == "CUDA graphs: 134 ms a pass, 620 before"
    assert event_line(replace(first, shapes=2)) == event_line(replace(first, plain_ms=None)) == ""


def test_text_and_remedy_of_a_warning_are_two_sentences(tell, run):
    EventWriter(run).write(WarningEvent(text="the run is eager", remedy="Free some room"))
    assert "Warning: the run is eager. Free some room." in tell("status", run.name)[1]
    error = ErrorEvent(text="this run is on cpu", remedy="Set attention to auto.")
    assert event_line(error) == "error: this run is on cpu. Set attention to auto."


def test_status_of_one_and_of_all(tell, run, runs_root):
    finished(run, 12, 0.001)
    failed = finished(Run.create_empty(runs_root, "broken"), 12, 0.001, "die=raise4")
    code, text = tell("status", run.name)
    assert code == 0 and f"{run.name}: done" in text and "Done: 12 steps" in text and "LoRA: " in text
    code, text = tell("status", "broken")
    assert code == 1 and "Likely cause: " in text and "What to change: " in text and "Python said: RuntimeError" in text
    code, text = tell("status")
    assert code == 0 and re.search(rf"{run.name} +done +12 / 12", text)
    assert re.search(rf"{failed.name} +failed", text) and "out of memory" in text


def test_status_as_json(tell, run, runs_root):
    finished(run, 12, 0.001)
    values = json.loads(tell("status", "latest", "--json")[1])
    assert (values["state"], values["step"], values["total_steps"], values["active"]) == ("done", 12, 12, False)
    assert [value["name"] for value in json.loads(tell("status", "--json")[1])] == [run.name]


def test_stop_from_another_terminal(run, runs_root):
    start("trainer", run, 100_000, 0.005)
    eventually(lambda: run.status().step > 1, "it trains")
    done = module("stop", run.name, "--root", str(runs_root))
    assert done.returncode == 0, done.stderr
    assert "Asked" in done.stdout and "Stopped at step" in done.stdout and "can be resumed" in done.stdout
    assert run.status().state == "stopped"
    assert "was not running" in module("stop", str(run.path)).stdout


def test_stop_now_does_not_wait_for_a_deaf_trainer(run, tell):
    start("trainer", run, 100_000, 0.005)
    eventually(lambda: run.status().step > 1, "it trains")
    code, text = tell("stop", run.name, "--now")
    assert code == 0 and "did not respond and was ended (INT)" in text


def test_logs_show_the_end(tell, run):
    run.log_path.write_text("".join(f"line [bold]{number}\n" for number in range(100)) + "open end")
    EventWriter(run).write(DoneEvent(step=1))
    run.finish("done")
    assert tell("logs", run.name, "-n", "2")[1] == "line [bold]99\nopen end\n"


def test_logs_follow_until_the_run_ends(run, runs_root):
    start("trainer", run, 60, 0.005)
    done = module("logs", run.name, "--follow", "--root", str(runs_root))
    assert done.returncode == 0 and run.status().state == "done"
    assert done.stdout.count("training on cpu") == 1


@pytest.mark.parametrize("command", ["status", "stop", "logs"])
def test_each_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0 and "--root" in capsys.readouterr().out


def test_reading_runs_imports_nothing_heavy():
    code = (
        "import sys, backend.runs.cli, backend.runs.supervise, backend.runs.logsetup, backend.runs.phase_progress\n"
        "print(sorted(set(sys.modules) & {'torch', 'diffusers', 'transformers', 'accelerate', 'gradio', 'numpy'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"
