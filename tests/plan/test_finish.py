"""The finish time before a start: what a probe measures, how it is reckoned, what it is held to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backend.config import load
from backend.config.schema import Config, with_values
from backend.dataset.scan import scan_dataset
from backend.plan.finish import __main__ as finish
from backend.plan.finish import earlier_runs
from backend.plan.finish.pace import Pace, keep_pace, probes_folder, read_pace
from backend.plan.finish.probe import _remove_abandoned, pace_of, probe_config
from backend.plan.finish.reckoning import cost_words, finish_time
from backend.plan.finish.timings import Process
from backend.plan.make_plan import plan_for
from backend.plan.tune import __main__ as tune
from backend.runs import start_lock
from backend.runs.errors import RunBusy, RunError
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CheckpointEvent, DoneEvent, PhaseEvent, StepTotalEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.runs.process import WITH_STARTER
from tests.tiny.runs import set_fields

PACE = Pace(
    measured=500.0, before=20.0, warm_up=10.0, step=0.5, steps_per_epoch=50.0, after=2.0,
    save=4.0, sample=30.0, validation=6.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock and list of this test's own: other tests of the checkout start runs meanwhile."""
    monkeypatch.setattr(start_lock, "LOCK", tmp_path / "starts" / ".start.lock")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folders = [{"path": str(tmp_path / "images")}]
    values = {"saving.output_dir": str(tmp_path / "runs"), "dataset.folders": folders}
    return with_values(Config(), values | {"training.max_train_steps": 400})


def test_everything_that_a_run_does_is_counted(config: Config) -> None:
    every = {"saving.save_every_n_steps": 100, "sampling.sample_every_n_epochs": 2, "sampling.sample_at_start": True}
    asked = with_values(config, {**every, "validation.validate_every_n_steps": 150})
    expected = finish_time(asked, PACE)
    assert expected is not None
    assert (expected.training, expected.starting) == (200.0, 32.0)
    # saves after steps 100, 200, 300 and at the end; samples at the start, after epochs 2, 4 and 6, and at the end
    assert (expected.saves, expected.samples) == (4 * 4.0, 5 * 30.0)
    ends = asked.validation.validate_at_start + asked.validation.validate_at_end
    assert expected.validations == (2 + ends) * 6.0
    parts = (expected.training, expected.starting, expected.saves, expected.samples, expected.validations)
    assert expected.seconds == sum(parts)
    assert "400 steps of 0.5 s" in expected.sentence()
    # between two saves that are 3,000 s apart a state is saved every ten minutes
    long = replace(PACE, step=30.0, state=3.0)
    assert finish_time(asked, long).saves == 4 * 4.0 + 4 * 5 * 3.0
    by_epochs = with_values(config, {"training.max_train_steps": None, "training.max_train_epochs": 3})
    assert finish_time(by_epochs, PACE).steps == 150
    assert cost_words(7200, 1.5, 0.4, 500) == "It costs 3.00 at 1.5 an hour and 0.40 for 1.00 kWh at 500 W."


def test_a_pace_serves_runs_that_do_the_same_more_or_less_often(config: Config) -> None:
    assert read_pace(config) is None
    keep_pace(config, PACE)
    often = with_values(config, {"sampling.sample_every_n_steps": 10, "training.max_train_steps": 99})
    assert read_pace(often) == PACE and read_pace(with_values(config, {"dataset.batch_size": 2})) is None
    assert earlier_runs.expected_seconds(often, [])[1] == "a probe of these settings"
    next(probes_folder(config).glob("*.json")).write_text("{")
    assert read_pace(config) is None


def test_a_finished_run_is_held_against_it(config: Config) -> None:
    keep_pace(config, PACE)
    run = Run.create(config)
    with MetricsWriter(run) as metrics:
        metrics.add(400, loss=0.1, s_per_step=0.5)
    EventWriter(run).write(StepTotalEvent(total=400))
    expected = finish_time(config, PACE).seconds
    facts = {"state": "done", "started": 1000.0, "ended": 1000.0 + 1.05 * expected, "result": {"step": 400}}
    set_fields(run.record_path, **facts)
    assert "(+5 %)" in earlier_runs.compared(run, run.status())
    # a probe that came later says nothing about what was told before
    set_fields(run.record_path, started=100.0, ended=100.0 + expected)
    assert earlier_runs.compared(run, run.status()) == ""


def test_a_process_is_taken_apart(config: Config, tmp_path: Path) -> None:
    """Compiling in the first steps, two sizes, a sample and a save."""
    events = [
        PhaseEvent(phase=phase, t=t)
        for phase, t in (
            ("scan", 3.0),
            ("load", 5.0),
            ("train", 20.0),
            ("sample", 60.0),
            ("train", 75.0),
            ("save", 90.0),
        )
    ]
    events.append(CheckpointEvent(file="a", t=94.0))
    seconds = [10.0, 2.0, *[1.0, 3.0] * 5]
    rows = [
        {"step": number, "s_per_step": each, "compile_seconds": 9.0 if number == 1 else 10.0, "cache_misses": 0}
        for number, each in enumerate(seconds, start=1)
    ]

    class Steps:
        batches_per_step, batches_per_epoch = 2, 12

    class Plan:
        steps = Steps()

    process = Process(began=0.0, ended=100.0, events=events, rows=rows)
    pace = pace_of(process, Plan())  # type: ignore[arg-type]
    assert (pace.before, pace.step, pace.sample) == (20.0, 2.0, 15.0)
    assert (pace.warm_up, pace.save, pace.after) == (12.0 - 2 * 2.0, 4.0, 6.0)
    assert pace.steps_per_epoch == 6 and not process.filled()
    with pytest.raises(RunError, match="before a step was done"):
        pace_of(Process(began=0.0, ended=1.0, events=[], rows=[]), Plan())  # type: ignore[arg-type]
    probed = probe_config(with_values(config, {"sampling.sample_every_n_steps": 1}), tmp_path)
    assert probed.sampling.sample_every_n_steps is None and probed.training.max_train_steps == 400
    assert not probed.validation.validate_at_start and not probed.sampling.sample_at_end
    asked = {"dataset.validation_split": 0.2, "sampling.prompts": [{"prompt": "a fox"}]}
    probed = probe_config(with_values(config, asked), tmp_path)
    assert probed.validation.validate_at_start and probed.sampling.sample_at_end

    # a run that is shorter than a probe ends by itself, and draws behind its last save
    events += [PhaseEvent(phase="sample", t=95.0), DoneEvent(t=99.0)]
    pace = pace_of(Process(began=0.0, ended=100.0, events=events, rows=rows), Plan())  # type: ignore[arg-type]
    assert (pace.sample, pace.save, pace.after) == ((15.0 + 4.0) / 2, 4.0, 6.0 - 4.0)


def test_a_probe_is_seen_by_other_starts_and_leaves_with_who_asked_for_it(config: Config) -> None:
    probe = Run.create(config, root=probes_folder(config))
    with start_lock.one_start(lambda: []):
        probe.prepare_start(["x"])
        start_lock.announce_probe(probe)
    with pytest.raises(RunBusy, match="finish time is being measured"), start_lock.one_start(lambda: []):
        pass
    _remove_abandoned(probes_folder(config))
    assert probe.path.is_dir(), "at work"
    with subprocess.Popen(["true"]) as gone:
        starter = {"pid": gone.pid, "create_time": 1.0}
    set_fields(probe.record_path, starter=starter)
    with start_lock.one_start(lambda: []):
        _remove_abandoned(probes_folder(config))
    assert not probe.path.exists()

    program = "import time; from backend.training.process import end_with_starter; end_with_starter(); time.sleep(50)"
    trainer = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, env={**os.environ, WITH_STARTER: "1"}
    )
    assert trainer.communicate(timeout=40) and trainer.returncode == 1


def test_a_step_is_timed_by_size_and_one_that_was_not_seen_by_its_tokens(config: Config, image_folder: Path) -> None:
    sized = {
        "dataset.folders": [{"path": str(image_folder)}],
        "compile.shape_mode": "dynamic",
        "dataset.resolution": 64,
    }
    sizes = {"dataset.min_bucket_size": 32, "dataset.bucket_step": 16}
    asked = with_values(config, sized | sizes)
    plan = plan_for(asked, scan_dataset(asked, None))
    tokens = {group.name: plan.fits[group.indices[0]].bucket.tokens for group in plan.chosen.groups}
    names = {index: group.name for group in plan.chosen.groups for index in group.indices}
    batches = [names[batch[0]] for epoch in range(6) for batch in plan.batches(epoch)]
    # of the fewest tokens, upright and lying
    unseen = {name for name in tokens if tokens[name] == min(tokens.values())}
    rows = [
        {"step": number, "s_per_step": tokens[name] / 100, "compile_seconds": 0.0}
        for number, name in enumerate(batches, start=1)
        if name not in unseen
    ]
    pace = pace_of(Process(began=0.0, ended=1.0, events=[], rows=rows), plan)
    assert len(tokens) > 2 and pace.groups == {n: pytest.approx(t / 100) for n, t in tokens.items() if n not in unseen}
    assert pace.step == pytest.approx(sum(tokens[name] / 100 for name in batches) / len(batches))


def test_real_processes_are_timed_and_leave_nothing(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    path, lines = tmp_path / "run.toml", []
    path.write_text(
        f'[model]\nfamily = "flux"\nbase_model = "{tiny_flux}"\ntext_length = 16\n'
        f'[dataset]\nresolution = 64\nmin_bucket_size = 32\nbucket_step = 16\ncache_dir = "{tmp_path / "cache"}"\n'
        f'[[dataset.folders]]\npath = "{image_folder}"\n'
        "[training]\nmax_train_steps = 4000\ngradient_checkpointing = false\n"
        # two settings that can't both be with compile, so that the tune below compiles nothing
        '[compile]\ncompile = false\ncompile_fullgraph = true\ndisable_linear = "on"\n'
        f'[saving]\noutput_dir = "{tmp_path / "runs"}"\n'
    )
    assert finish.main([str(path), "--known"], lines.append) == 1
    assert finish.main([str(path), "--json", "--seconds", "0.5"], lines.append) == 0, lines
    document = json.loads(lines[-1])
    assert document["kind"] == "finish" and document["steps"] == 4000
    assert (
        document["training"] == pytest.approx(4000 * document["step"])
        and document["starting"] > 0.5
        and document["saves"] > 0
    )
    (left,) = (tmp_path / "runs" / ".probes").iterdir()
    assert left.suffix == ".json", "the probe's run is gone, its pace stays"
    assert finish.main([str(path), "--known", "--price-per-hour", "2"], lines.append) == 0
    assert "4,000 steps" in "".join(lines[-3:]) and "at 2 an hour" in lines[-1]

    # a tune begins with what the probe measured; the paces of the two others are kept as a probe keeps them
    config = load.load(path).config
    assert config is not None
    pace = read_pace(config)
    for mode, times in (("dynamic", 0.5), ("off", 2.0)):
        keep_pace(with_values(config, {"compile.shape_mode": mode}), replace(pace, step=times * pace.step, groups=None))
    best = tmp_path / "best.toml"
    assert tune.main([str(path), "--json", "--write", str(best)], lines.append) == 0, lines
    result = json.loads(lines[-1])
    assert result["kind"] == "tune" and (result["ended"], result["probes"]) == ("done", 0)
    names = ["present settings", "shape mode dynamic", "shape mode off"]
    assert [(trial["name"], trial["state"]) for trial in result["trials"]] == [(name, "reused") for name in names]
    assert all(trial["peak"] > 2**20 and trial["finish"] > 4000 * trial["step"] > 0 for trial in result["trials"])
    assert result["best"] == 1 and load.load(best).config == with_values(config, {"compile.shape_mode": "dynamic"})
    assert {left.suffix for left in (tmp_path / "runs" / ".probes").iterdir()} == {".json"}
    assert tune.main([str(path), "--write", str(best)], lines.append) == 1 and "exists already" in lines[-1]
