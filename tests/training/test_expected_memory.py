"""The estimate of a run is written down before it, and held against its peak at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from backend.base.errors import Refused
from backend.plan.memory.machine import named_gpu
from backend.plan.memory.nearest import Search
from backend.runs.events import EventWriter
from backend.training.expected_memory import FILE, ExpectedMemory, compare_with_peak, limit
from tests.tiny.event_lines import event_lines
from tests.tiny.memory_plans import WORK, flux_dev, settings
from tests.tiny.training import config, events, train_here

GB = 2**30


def expected(gigabytes: float, **changes: dict[str, object]) -> ExpectedMemory:
    search = Search(settings(**changes), WORK, named_gpu(gigabytes), flux_dev())
    estimation = search.after({})
    assert estimation is not None
    return ExpectedMemory(search=search, estimate=estimation)


def test_a_run_writes_both_down(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    run, code = train_here(config(tiny_flux, image_folder, tmp_path))
    assert code == 0
    (estimate,) = events(run, "memory_estimate")
    (peak,) = events(run, "memory_peak")
    assert estimate["ram_total"] > 0 and {stage["name"] for stage in estimate["stages"]} >= {"encode_text", "train"}
    assert peak["ram_peak"] > 0 and peak["ram_estimated"] == estimate["ram_total"]
    assert events(run, "done")[0]["memory"]["ram_peak"] == peak["ram_peak"]
    kinds = [event["kind"] for event in events(run)]
    assert kinds.index("memory_estimate") < kinds.index("memory_peak")
    phases = [event["phase"] for event in events(run) if event["kind"] == "phase"]
    assert phases.index("scan") < phases.index("load")
    kept = json.loads((run.path / FILE).read_text())
    assert kept["estimate"]["ram_total"] == estimate["ram_total"] and kept["peak"]["ram_peak"] == peak["ram_peak"]

    run, code = train_here(config(tiny_flux, image_folder, tmp_path))
    assert code == 0
    (estimate,) = events(run, "memory_estimate")
    assert "encode_text" not in {stage["name"] for stage in estimate["stages"]}, "captions are in the cache by now"


@pytest.mark.parametrize("planned", [True, False])
def test_what_recordings_keep_is_compared_where_the_estimate_counts_it(
    planned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 40 * GB)
    meter = SimpleNamespace(device=torch.device("cuda"), kept=2 * GB, vram_peak=lambda: 30 * GB)
    forecast = expected(80, compile={"cuda_graphs": "on" if planned else "off"})
    writer = EventWriter(tmp_path / "events.jsonl")
    fields = compare_with_peak(writer, forecast, meter)
    assert fields["vram_estimated"] == forecast.estimate.peak.allocated
    assert fields["vram_compared"] == (30 if planned else 28) * GB
    (event,) = event_lines(writer.path)
    off = 100 * event["vram_estimated"] / event["vram_compared"] - 100
    assert f"({off:+.0f} %)" in event["words"] and ("besides" in event["words"]) is not planned


def test_a_model_whose_weights_can_not_fit_is_refused_with_the_nearest_change() -> None:
    with pytest.raises(Refused) as refused:
        expected(16).refuse_if_too_large()
    (problem,) = refused.value.problems
    assert "does not fit the GPU: training needs at least" in problem.text and "weights 22.2 GB" in problem.text
    assert "has 16.0 GB free of 16.0 GB" in problem.text and "then" in problem.remedy


def test_every_stage_that_can_not_fit_is_told_at_once() -> None:
    with pytest.raises(Refused) as refused:
        expected(7, memory={"vram_limit_gb": 6}).refuse_if_too_large()
    stages = [problem.text for problem in refused.value.problems]
    assert any("encoding captions" in text for text in stages) and any(": training" in text for text in stages)
    assert all("vram_limit_gb leaves 6.0 GB" in text for text in stages)


def test_what_only_activations_make_too_large_is_tried() -> None:
    tight = expected(25)
    assert tight.estimate.verdict == "does_not_fit"
    tight.refuse_if_too_large()
    on_cpu = replace(tight, search=Search(settings(), WORK, named_gpu(1), flux_dev(), on_gpu=False))
    on_cpu.refuse_if_too_large()


def test_a_limit_on_the_cpu_is_told(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    assert "no effect" in (limit(8, torch.device("cpu")) or "") and limit(None, torch.device("cpu")) is None
    run, _ = train_here(
        config(tiny_flux, image_folder, tmp_path, memory={"vram_limit_gb": 8}, training={"max_train_steps": 1})
    )
    assert any("vram_limit_gb has no effect" in event["text"] for event in events(run, "warning"))
