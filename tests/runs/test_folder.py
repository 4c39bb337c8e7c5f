"""A run is its folder: made once, found by anybody, never used twice."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from backend.config.load import load
from backend.config.schema import Config
from backend.runs.control import Control
from backend.runs.errors import RunBusy, RunError, RunNotFound
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CheckpointEvent, DoneEvent, SampleEvent
from backend.runs.folder import Run, find, is_run, list_runs, safe_name
from tests.tiny.runs import ROOT, set_fields


def test_a_new_run_holds_its_whole_configuration(runs_root):
    run = Run.create(Config(), root=runs_root)
    assert run.path.parent == runs_root and run.name.startswith("lora-2")
    data = tomllib.loads(run.config_path.read_text(encoding="utf-8"))
    assert data["network"]["network_dim"] == 16 and data["training"]["seed"] == 42  # defaults too
    assert load(run.config_path).config == Config()
    assert all(folder.is_dir() for folder in (run.state_dir, run.checkpoints_dir, run.samples_dir, run.control_dir))
    assert run.status().state == "starting"


def test_folders_are_never_used_twice(runs_root):
    made = [Run.create_empty(runs_root, "same") for _ in range(5)]
    assert len({run.path for run in made}) == 5
    assert sorted(list_runs(runs_root), key=lambda r: r.name) == sorted(made, key=lambda r: r.name)


def test_a_folder_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="can't be created") as caught:
        Run.create_empty(tmp_path / "file", "x")
    assert "output_dir" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("my lora", "my-lora"),
        ("../../etc/passwd", "etc-passwd"),
        ("a:b*c?", "a-b-c"),
        ("Füchse 狐 [v2] 100%", "Füchse-狐-[v2]-100%"),
        ("CON", "run-CON"),
        ("nul.txt", "run-nul.txt"),
        ("...", "run-"),
        ("", "run-"),
        ("狐" * 100, "狐" * 40),
    ],
)
def test_names_that_every_system_takes(name, safe):
    assert safe_name(name) == safe


def test_runs_are_listed_newest_first_and_other_folders_are_not(runs_root):
    names = []
    for number in range(3):
        run = Run.create_empty(runs_root, f"r{number}")
        set_fields(run.record_path, created=1000.0 + number)
        names.insert(0, run.name)
    (runs_root / "notes").mkdir()
    (runs_root / "file").touch()
    assert [run.name for run in list_runs(runs_root)] == names
    assert list_runs(runs_root / "nowhere") == []


def test_a_run_whose_record_was_lost_is_still_a_run(run):
    run.config_path.write_text("")
    EventWriter(run).write(DoneEvent(step=1))
    run.record_path.unlink()
    assert is_run(run.path) and run.status().state == "done"


def test_runs_are_found_by_name_beginning_latest_and_path(runs_root):
    first, second = Run.create_empty(runs_root, "fox"), Run.create_empty(runs_root, "foxes")
    set_fields(second.record_path, created=9e9)
    assert find(runs_root, first.name) == first
    assert find(runs_root, "foxes") == second
    assert find(runs_root, "latest") == second
    assert find(runs_root, str(first.path), paths=True) == first
    with pytest.raises(RunNotFound, match="2 runs begin with 'fox'"):
        find(runs_root, "fox")
    with pytest.raises(RunNotFound, match=f"Did you mean .*{first.name}"):
        find(runs_root, first.name.replace("fox", "fxo"))
    with pytest.raises(RunNotFound):
        find(runs_root, "")


def test_a_name_from_a_browser_never_leaves_the_folder(runs_root, run):
    for name in (str(run.path), f"../{runs_root.name}/{run.name}", f"./{run.name}"):
        with pytest.raises(RunNotFound):
            find(runs_root, name)


def test_samples_and_checkpoints_carry_what_the_events_say(run):
    events = EventWriter(run)
    for step, index in ((20, 1), (20, 0), (5, 0)):
        path = run.samples_dir / f"{step:06d}_{index}.png"
        path.write_bytes(b"png")
        events.write(SampleEvent(step=step, prompt_index=index, file=path.name, prompt=f"prompt {index}"))
    (run.samples_dir / ".half.png.12-00000000.part").touch()
    (run.samples_dir / "notes.txt").touch()
    (run.samples_dir / "unknown.webp").touch()
    assert [(s.step, s.prompt_index, s.prompt) for s in run.samples()] == [
        (5, 0, "prompt 0"), (20, 0, "prompt 0"), (20, 1, "prompt 1"), (None, None, None)
    ]  # fmt: skip
    (run.checkpoints_dir / "lora-000010.safetensors").write_bytes(b"1234")
    events.write(CheckpointEvent(step=10, file=str(run.checkpoints_dir / "lora-000010.safetensors")))
    (saved,) = run.checkpoints()
    assert (saved.step, saved.size) == (10, 4)


def test_generations_are_counted_in_the_folder(run):
    assert [run.begin_generation(step) for step in (0, 40, 90)] == [0, 1, 2]
    assert run.record()["generation_step"] == 90 and run.status().generation == 2


def test_the_end_is_written_once_and_its_result_grows(run):
    run.finish("done", step=50, lora=run.checkpoints_dir / "a.safetensors", loss=float("nan"))
    ended = run.record()["ended"]
    run.finish("failed", seconds=3.5, token="hf_abcdefghijklmnopqrstuvwxyz")
    record = run.record()
    assert (record["state"], record["ended"]) == ("done", ended)
    assert record["result"] == {
        "step": 50, "lora": str(run.checkpoints_dir / "a.safetensors"), "loss": None, "seconds": 3.5,
        "token": "[hidden]",
    }  # fmt: skip
    with pytest.raises(ValueError, match="no end of a run"):
        run.finish("running")


def test_two_writers_of_the_record_undo_nothing(run):
    code = (
        "import sys\nfrom backend.runs.record import update\nfrom pathlib import Path\n"
        "for n in range(60): update(Path(sys.argv[1]), lambda record: record | {f'{sys.argv[2]}{n}': n})\n"
    )
    command = [sys.executable, "-c", code, str(run.record_path)]
    workers = [subprocess.Popen([*command, letter], cwd=ROOT) for letter in "ab"]
    assert [worker.wait() for worker in workers] == [0, 0]
    record = run.record()
    assert all(record[f"{letter}{n}"] == n for letter in "ab" for n in range(60))


def test_a_second_trainer_on_one_run_is_refused(run):
    run.attach()
    code = "import sys\nfrom backend.runs.folder import Run\nRun(sys.argv[1]).attach()"
    environment = {name: value for name, value in os.environ.items() if name != "MONOTILE_RUN"}
    second = subprocess.run(
        [sys.executable, "-c", code, str(run.path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"already being trained by process {os.getpid()}" in second.stderr
    assert run.process().pid == os.getpid()
    # Also one that was spawned for it, and comes too late.
    environment["MONOTILE_RUN"] = str(run.path)
    command = [sys.executable, "-c", code, str(run.path)]
    late = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "already being trained" in late.stderr and run.process().pid == os.getpid()
    # In the parent's place: a start from the page.
    code = "import sys\nfrom backend.runs.folder import Run\nRun(sys.argv[1]).prepare_start([])"
    assert subprocess.run([sys.executable, "-c", code, str(run.path)], cwd=ROOT, capture_output=True).returncode == 1


def test_a_trainer_started_by_hand_forgets_old_requests_and_the_old_end(run, monkeypatch):
    monkeypatch.delenv("MONOTILE_RUN", raising=False)
    Control(run).request("stop")
    run.finish("stopped", step=7)
    run.attach()
    assert Control(run).pending() == set()
    assert run.is_alive() and "state" not in run.record() and run.status().state == "starting"


def test_requests_are_files_seen_at_once(run):
    control = Control(run)
    assert control.pending() == set()
    control.request("save")
    control.request("save")
    Control(run.control_dir).request("sample")
    (run.control_dir / "notes").touch()
    assert control.pending() == {"save", "sample"}
    control.clear("save")
    control.clear("save")
    assert control.pending() == {"sample"}
    with pytest.raises(ValueError, match="known: sample, save, stop"):
        control.request("explode")


def test_a_busy_error_is_a_run_error():
    assert issubclass(RunBusy, RunError) and str(RunError("It broke.", "Mend it.")) == "It broke. Mend it."


FULL = """
import resource, sys
from backend.runs.errors import RunError
from backend.runs.folder import Run
from backend.train import main
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    Run.create_empty(sys.argv[1], "new")
except RunError as error:
    print(error)
sys.exit(main(["--run", sys.argv[2]]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX's")
def test_a_disk_too_small_for_the_record_is_a_sentence(runs_root, run):
    command = [sys.executable, "-c", FULL, str(runs_root), str(run.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "can't be created: " in done.stdout and "choose another output_dir" in done.stdout
    assert "run.json" in done.stderr and "can't be written" in done.stderr
