"""A tune: which candidates there are, their order, the choice, what is reused, and rows that have no figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.config.schema import Config, with_values
from backend.dataset.items import DatasetScan
from backend.dataset.scan import scan_dataset
from backend.plan.finish import pace as kept_paces
from backend.plan.finish import probe
from backend.plan.finish.pace import Pace, read_pace
from backend.plan.finish.timings import Process
from backend.plan.memory.machine import named_gpu
from backend.plan.plan import Plan
from backend.plan.tune import candidates, search
from backend.plan.tune.candidates import Candidates
from backend.plan.tune.expected_gains import Surroundings
from backend.plan.tune.factors import FACTORS, most_promising
from backend.plan.tune.report import tuned_dict
from backend.plan.tune.search import Options, tune
from backend.plan.tune.trials import Tuned, block_classes, pareto
from backend.runs import start_lock
from backend.runs.errors import RunBusy
from backend.runs.events import EventWriter
from backend.runs.events.kinds import AttentionEvent, ErrorEvent, Event, GraphEvent, MemoryPeakEvent, PhaseEvent
from backend.runs.folder import Run
from tests.tiny.full_size import full_size
from tests.tiny.runs import set_fields

Seconds = Callable[[Config], float]


@pytest.fixture(autouse=True)
def own_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock and list of this test's own: other tests of the checkout start runs meanwhile."""
    monkeypatch.setattr(start_lock, "LOCK", tmp_path / "starts" / ".start.lock")


@pytest.fixture
def config(tiny_flux: Path, tmp_path: Path, image_folder: Path) -> Config:
    """A tiny FLUX with an int8 base, on small pictures."""
    return with_values(
        Config(),
        {"model.base_model": str(tiny_flux), "model.text_length": 16, "saving.output_dir": str(tmp_path / "runs")}
        | {"dataset.folders": [{"path": str(image_folder)}], "dataset.resolution": 64, "dataset.bucket_step": 16}
        | {"dataset.min_bucket_size": 32, "training.max_train_steps": 400, "memory.base_quantization": "int8"},
    )


@pytest.fixture
def scan(config: Config) -> DatasetScan:
    return scan_dataset(config, None)


def of_gpu(monkeypatch: pytest.MonkeyPatch, gigabytes: float) -> None:
    """The GPU whose memory candidates are compared with."""
    monkeypatch.setattr(candidates, "visible_gpus", lambda: [named_gpu(gigabytes)])


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The factors that are tried: each candidate's memory is estimated, which takes a while."""
    monkeypatch.setattr(search, "FACTORS", tuple(factor for factor in FACTORS if factor.name in names))


def records(step: float, compiling: float = 0.0, peak: int = 10 * 2**30) -> Process:
    """What a trainer writes in a probe: phases, graphs of two classes, the kernel, rows and the peak."""
    events: list[Event] = [PhaseEvent(phase="load", t=1.0), AttentionEvent(route="sdpa", t=4.0)]
    events += [PhaseEvent(phase="train", t=10.0)]
    if compiling:
        events += [
            GraphEvent(graph=n, block=name, seconds=compiling / 2, t=11.0) for n, name in ((1, "double"), (2, "single"))
        ]
    events += [PhaseEvent(phase="save", t=50.0), MemoryPeakEvent(vram_peak=peak, t=55.0)]
    rows: list[dict[str, Any]] = [
        {"step": number, "s_per_step": step, "compile_seconds": compiling, "cache_misses": 2 * bool(compiling)}
        for number in range(1, 20)
    ]
    if compiling:
        rows[0]["s_per_step"] = None
    return Process(began=0.0, ended=60.0, events=events, rows=rows)


class Probes:
    """Stands where trainers run: gives the records of a probe by its settings, and notes the order."""

    def __init__(self, seconds: Seconds) -> None:
        self.seconds = seconds
        self.trained: list[Config] = []

    def __call__(self, config: Config, plan: Plan, report: Callable[[str, float], object]) -> Pace:
        report("Measuring.", 0.5)
        self.trained.append(config)
        peak = (20 if not config.training.gradient_checkpointing else 10) * 2**30
        return probe.pace_of(records(self.seconds(config), 30.0 * config.compile.compile, peak), plan)


def usual(config: Config) -> float:
    """A step's seconds: recomputing, eager blocks and open shapes cost time."""
    step = 1.0 if config.training.gradient_checkpointing else 0.75
    step *= 1.0 if config.compile.compile else 1.5
    step *= 1.3 if config.compile.compile_blocks else 1.0
    step *= {"dynamic": 1.2, "off": 1.01}.get(config.compile.shape_mode, 1.0)
    step *= 0.9 if config.compile.cuda_graphs == "on" else 1.0
    return step * (0.8 if config.memory.base_compute == "fp8" else 1.0)


def run(config: Config, scan: DatasetScan, seconds: Seconds = usual, **asked: Any) -> tuple[Tuned, Probes]:
    probes = Probes(seconds)
    return tune(config, scan, probes, lambda *_: None, Options(**asked)), probes


def test_one_factor_at_a_time_from_the_best_so_far(
    config: Config, scan: DatasetScan, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_gpu(monkeypatch, 80)
    counts: list[tuple[int, int]] = []
    probes = Probes(usual)
    tuned = tune(config, scan, probes, lambda so_far, *_: counts.append((so_far.probes, so_far.planned)), Options())
    names = [trial.name for trial in tuned.trials]
    # what promises most comes first; a run so long that compiling is a small part of it is tried without at the end
    assert names[:2] == ["present settings", "no checkpointing"]
    assert [trial.factor for trial in tuned.trials].index("compile") > len(names) // 2
    # what computes more than one that runs is not tried, and each factor begins with what was best before it
    assert "no checkpointing" in names and not any("budget" in name or "selective" in name for name in names)
    behind = names[names.index("no checkpointing") + 1 :]
    assert behind[0] == "no checkpointing, CUDA graphs on" and all("no checkpointing" in name for name in behind)
    best = tuned.chosen
    assert best is not None and best.name == "no checkpointing, CUDA graphs on"
    assert best.values == {"training.gradient_checkpointing": False, "compile.cuda_graphs": "on"}
    # base precision is not touched unless it is asked for, and 400 steps of it are reckoned with its compiling
    assert all(trained.memory.base_quantization == "int8" for trained in probes.trained)
    assert best.finish is not None and best.finish.training == pytest.approx(400 * 0.75 * 0.9)
    assert best.finish.starting == pytest.approx(10.0 + 30.0)
    assert tuned.gain is not None and tuned.gain > 0.25 and tuned.ended == "done"
    assert len(probes.trained) == tuned.probes and all(trained <= planned for trained, planned in counts[4:])
    # the pair of the two that came nearest is the last
    assert [trial.number for trial in pareto(tuned.trials)][0] == best.number
    document = json.loads(json.dumps(tuned_dict(tuned)))
    assert document["best"] == best.number and document["trials"][0]["against"] == 0

    again, none = run(config, scan)
    assert not none.trained and again.best == tuned.best and again.trials[1].state == "reused"
    monkeypatch.setattr(kept_paces, "machine_words", lambda: ("this machine", "", "another GPU", "torch 9"))
    assert read_pace(config) is None, "another GPU or torch has another pace"


def test_what_promises_most_on_this_machine_comes_first(config: Config) -> None:
    whole = with_values(config, {"memory.base_quantization": "none"})
    swapped = with_values(whole, {"memory.blocks_to_swap": 2, "training.gradient_accumulation_steps": 4})
    eager = with_values(whole, {"compile.compile": False, "compile.attention": "sdpa"})
    hopper, turing = Surroundings(on_gpu=True, capability=(9, 0), blocks=57), (7, 5)

    def order(cfg: Config, around: Surroundings) -> list[str]:
        left, names = list(FACTORS), []
        while left:
            left.remove(factor := most_promising(left, cfg, around))
            names += [factor.name] if list(factor.choices(cfg, around)) else []
        return names

    assert order(whole, hopper)[:3] == ["products", "checkpointing", "cuda_graphs"]
    assert order(whole, hopper)[-1] == "compile" and "products" not in order(whole, replace(hopper, capability=turing))
    assert order(swapped, hopper)[:4] == ["products", "checkpointing", "swap", "batch"]
    assert order(swapped, hopper).index("base") < order(swapped, hopper).index("attention")
    assert order(swapped, replace(hopper, capability=turing))[:2] == ["checkpointing", "swap"]
    assert order(eager, replace(hopper, capability=turing))[0] == "compile"
    assert order(eager, hopper).index("attention") < order(eager, hopper).index("base")
    # a run of which most is compiling
    assert order(whole, replace(hopper, capability=turing, warm_up=0.7))[0] == "compile"
    assert order(whole, replace(hopper, on_gpu=False))[-1] == "products"
    (products,) = (factor for factor in FACTORS if factor.name == "products")
    kinds = {
        capability: [choice.words for choice in products.choices(whole, replace(hopper, capability=capability))]
        for capability in ((8, 6), (8, 9), (12, 0))
    }
    assert kinds == {
        (8, 6): ["int8 products"],
        (8, 9): ["fp8 products", "int8 products"],
        (12, 0): ["int8 products", "fp8 products"],
    }


def test_what_does_not_fit_is_listed_and_may_fit_with_another(
    config: Config, scan: DatasetScan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_gpu(monkeypatch, 11.5)
    only(monkeypatch, "swap", "checkpointing")
    # FLUX.1-dev at its full size: headers alone
    sizes = {"dataset.resolution": 512, "dataset.min_bucket_size": 256, "dataset.bucket_step": 64}
    model = {f"model.{place}": path for place, path in full_size("flux", tmp_path).items()}
    config = with_values(config, sizes | model | {"model.text_length": 512})
    swapped = with_values(config, {"memory.blocks_to_swap": 27})
    tuned, probes = run(swapped, scan, lambda config: usual(config) + config.memory.blocks_to_swap / 100)
    rows = {trial.name: trial for trial in tuned.trials}
    full = rows["no blocks swapped"]
    assert full.state == "does_not_fit" and "of video memory, of 11.5 GB" in full.reason and not full.ran
    assert all(trained.memory.blocks_to_swap for trained in probes.trained)
    choice = tuned.chosen
    # the fewest swapped blocks that fit, and none of those that swap more
    assert choice is not None and 0 < choice.values["memory.blocks_to_swap"] < 27
    assert len([trial for trial in tuned.trials if trial.factor == "swap" and trial.ran]) == 1

    # settings that don't fit: the first change that makes them fit is where it begins
    of_gpu(monkeypatch, 12)
    small, _ = run(config, scan)
    assert small.present.state == "does_not_fit" and small.chosen is not None
    assert small.chosen.values["memory.blocks_to_swap"] > 0 and small.gain is None
    assert "the present settings don't run" in tuned_dict(small)["text"]


def test_a_probe_that_fails_is_a_row(config: Config, scan: DatasetScan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run folder of a trainer that ran out of memory, as a probe reads it."""
    of_gpu(monkeypatch, 80)
    only(monkeypatch, "compile", "checkpointing")
    failed = Run.create(config)
    EventWriter(failed).write(ErrorEvent(text="The GPU ran out of memory.", remedy="Swap.", error_kind="cuda_oom"))
    set_fields(failed.record_path, state="failed", error={"text": "The GPU ran out of memory.", "remedy": "Swap."})

    def interrupted(trained: Config) -> float:
        if not trained.training.gradient_checkpointing:
            raise RunBusy("A run is at work.", "Wait.") if busy else KeyboardInterrupt
        return usual(trained)

    busy = False
    stopped, _ = run(config, scan, interrupted)
    assert stopped.ended == "stopped" and stopped.best == 0 and len(stopped.trials) == 1
    busy = True
    ended, _ = run(config, scan, interrupted)
    assert ended.ended == "busy" and "used again" in ended.why and ended.trials[0].state == "reused"

    def broken(trained: Config) -> float:
        raise probe.ProbeFailed("The probe failed: The VAE is damaged.", "", "unknown")

    ended, tried = run(config, scan, broken, again=True)
    assert len(tried.trained) == 1 and "The VAE is damaged." in ended.why and ended.best is None

    def rest(trained: Config) -> float:
        if not trained.training.gradient_checkpointing:
            raise probe._failure(failed, failed.status())
        return usual(trained)

    tuned, _ = run(config, scan, rest, by_class=True)
    row = next(trial for trial in tuned.trials if trial.name == "no checkpointing")
    assert (row.state, row.reason) == ("out_of_memory", "The GPU ran out of memory.")
    # the next that needs less is tried in its place
    assert next(trial for trial in tuned.trials if "activation budget 0.75" in trial.name).ran
    double = next(each for each in block_classes(tuned.trials) if each.name == "double")
    assert (double.compiling, double.speed_up) == (15.0, pytest.approx(1.3))
    limited, few = run(config, scan, probes=1, again=True)
    assert limited.ended == "limit" and len(few.trained) == 1


def test_only_what_is_asked_for_changes_what_is_learnt(
    config: Config, scan: DatasetScan, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_gpu(monkeypatch, 80)
    around = Surroundings(on_gpu=True, blocks=57)
    whole = with_values(config, {"dataset.batch_size": 2, "training.gradient_accumulation_steps": 3})
    for factor in FACTORS:
        for choice in factor.choices(whole, around):
            changed = with_values(whole, choice.values)
            assert changed.dataset.batch_size * changed.training.gradient_accumulation_steps == 6, choice.words
            precise = (changed.memory.base_quantization, changed.memory.base_compute) == ("int8", "bf16")
            assert precise or (factor.needs == "precision" and choice.changes), choice.words
            cropped = changed.compile.shape_mode == "exact_buckets"
            assert not cropped or (factor.needs == "crops" and choice.changes), choice.words
    sizes = [choice.words for factor in FACTORS if factor.name == "batch" for choice in factor.choices(whole, around)]
    assert sizes == ["batch 6 x 1", "batch 3 x 2", "batch 1 x 6"]
    # by size, a batch of two leaves most of seven sizes out: a run of epochs would end sooner for want of work
    epochs = {"training.max_train_steps": None, "training.max_train_epochs": 12, "dataset.batch_size": 2}
    made = Candidates(with_values(config, epochs), scan)
    assert made.of({"compile.shape_mode": "off"}, "") is None
    assert made.of({"compile.shape_mode": "off", "dataset.batch_size": 1}, "") is not None
