"""A dress rehearsal: the base model that it writes, the run that it makes, and the figures and page made of that."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench.random_part import RandomTensor
from backend.bench.rehearsal import __main__ as rehearsal
from backend.bench.rehearsal import report
from backend.bench.rehearsal.base_model import names_in_files, write_base_model, write_shards
from backend.bench.rehearsal.row import figures, phases, warm_from
from backend.bench.rehearsal.sizes import SIZES
from backend.bench.rehearsal.trial import Process, Trial, failure
from backend.bench.rehearsal.workspace import claim, holds
from backend.families.files import headers
from backend.families.table import family
from backend.models.common.tensor_sources import file_tensors
from backend.runs.events import read_events
from backend.runs.events.kinds import (
    CompileStateEvent,
    CudaGraphsEvent,
    Event,
    MemoryEstimateEvent,
    MemoryPeakEvent,
    PhaseEvent,
)
from backend.runs.folder import Run, list_runs
from tests.tiny.qwen_image import text_encoder


def test_a_rehearsal_trains_saves_samples_stops_and_resumes(tmp_path: Path) -> None:
    """One real run through the launcher's command, on a model that an earlier rehearsal left."""
    work, out, lines = tmp_path / "work", tmp_path / "out", []
    claim(work)
    write_base_model(SIZES["tiny-flux"], work / "tiny-flux-3-blocks", 3)
    line = ["--rehearse", "tiny-flux", "--blocks", "3", "--steps", "4", "--pictures", "3", "--commit", "abc"]
    line += ["--setting", "compile.compile=false", "--work", str(work), "--out", str(out)]
    assert bench.main(line, lines.append) == 0, lines
    (row,) = report.read_rows(out)
    assert row["base_model_s"] is None and "from before" in "".join(lines)
    assert row["error"] == "" and row["blocks"] == 3 and row["device"] == "CPU" and row["commit"] == "abc"
    assert {"start", "scan", "cache_latents", "cache_text", "load", "train", "save", "sample"} <= row["phases_s"].keys()
    assert row["steps"] >= 4 and row["resumed_from"] == row["steps"] and row["resume_first_step_s"] > 0
    assert row["s_per_step"] > 0 and row["graphs"] == row["planned_graphs"] == 0 and row["ram_estimated_gb"] > 0
    assert row["command"] == (
        "python launcher.py bench --rehearse tiny-flux --blocks 3 --steps 4 --pictures 3 "
        "--setting compile.compile=false --work WORK"
    )
    assert "| tiny-flux, 3 blocks, 64 px | compile.compile=false |" in lines[-2]


def test_rows_of_full_fine_tuning_stand_beside_what_others_publish() -> None:
    row = {"size": "flux", "resolution": 1024, "settings": [], "s_per_step": 1.5, "peak_allocated_gb": 19.5}
    assert report.full_table([row]) == ""
    names = ["training.kind=full", "training.full_weight_dtype=bf16", "optimizer.optimizer=adafactor"]
    own = {**row, "settings": [*names, "optimizer.fused_backward=true", "memory.blocks_to_swap=22"]}
    page = report.full_table([row, own])
    assert "| Monotile | flux, full, 1024 px | bf16 | adafactor, fused | 22 | 1.5 | 19.5 | - | - | - |\n" in page
    assert "| sd-scripts | FLUX.1 | bf16 | adafactor, fused | 28 | - | 12 | - | - | - |\n" in page
    assert "flux, full, 1024 px" in report.table([own]) and "full" not in report.table([row])


def test_a_video_model_is_rehearsed_from_clips_to_a_sample_that_plays(tmp_path: Path) -> None:
    work, out, lines = tmp_path / "work", tmp_path / "out", []
    claim(work)
    write_base_model(SIZES["tiny-wan"], work / "tiny-wan")
    line = ["--rehearse", "tiny-wan", "--clip", "64x48x5", "--steps", "3", "--pictures", "2", "--commit", "abc"]
    line += ["--once", "--setting", "compile.compile=false", "--work", str(work), "--out", str(out)]
    assert bench.main(line, lines.append) == 0, lines
    (row,) = report.read_rows(out)
    assert row["clip"] == "64x48x5" and row["pictures"] == 2 and row["error"] == "" and row["steps"] >= 3
    assert row["resumed_from"] is None and row["phases_s"].keys() >= {"cache_latents", "train", "sample", "save"}
    assert "rehearse tiny-wan --clip 64x48x5 --steps 3 --pictures 2 --once" in row["command"]
    assert "| tiny-wan, 64x48x5 |" in report.phase_table([row])
    (run,) = list_runs(work / "runs")
    assert len(run.checkpoints()) == 1 and not run.has_state()
    plan = next(event for event in read_events(run.events_path)[0] if event.kind == "plan")
    assert [(bucket["width"], bucket["height"], bucket["frames"]) for bucket in plan.buckets] == [(64, 48, 5)]
    (sample, *_) = (work / "runs").rglob("*.mp4")
    with av.open(str(sample)) as container:
        assert len(list(container.decode(video=0))) == 5


def test_what_is_wrong_is_said_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own"
    (own / "runs").mkdir(parents=True)
    (own / "runs" / "kept.txt").write_text("mine")
    wrong = {
        "holds files that no rehearsal made": ["--size", "tiny-flux", "--work", str(own)],
        "SECTION.NAME=VALUE": ["--size", "tiny-flux", "--work", str(tmp_path / "a"), "--setting", "network_dim"],
        "4 blocks: give 2 to 4": ["--size", "tiny-flux", "--work", str(tmp_path / "b"), "--blocks", "9"],
        "--clip is for video models": ["--size", "tiny-flux", "--work", str(tmp_path / "d"), "--clip", "64x64x5"],
        "--resolution is for models of pictures": ["--size", "tiny-wan", "--work", str(own), "--resolution", "64"],
        "6 frames are not 4 n + 1": ["--size", "tiny-wan", "--work", str(own), "--clip", "64x64x6"],
        "its depth is fixed": ["--size", "tiny-sdxl", "--work", str(tmp_path / "c"), "--blocks", "2"],
    }
    for text, line in wrong.items():
        assert rehearsal.main(line) == 2
        assert text in capsys.readouterr().err
    assert (own / "runs" / "kept.txt").read_text() == "mine"
    assert not list(tmp_path.glob("*/tiny-*"))


def test_the_models_are_what_their_families_accept(tmp_path: Path) -> None:
    size = SIZES["tiny-sdxl"]
    write_base_model(size, tmp_path / "model")
    assert family("sdxl").check_base_model(tmp_path / "model") == []
    assert holds(tmp_path / "model", size, None) and not holds(tmp_path / "model", SIZES["sdxl"], None)


def test_a_video_model_is_accepted_with_its_matrices_in_fp8(tmp_path: Path) -> None:
    size = replace(SIZES["tiny-wan"], fp8=frozenset({"transformer"}))
    write_base_model(size, tmp_path / "model")
    assert family("wan").check_base_model(tmp_path / "model") == []
    (path,) = headers.weight_files(tmp_path / "model" / "transformer", "diffusion_pytorch_model")
    tensors = file_tensors(path)
    matrix = tensors["blocks.0.attn1.to_q.weight"]
    assert matrix.dtype == torch.float8_e4m3fn and matrix.read().float().abs().max() > 0.1
    assert tensors["blocks.0.attn1.to_q.bias"].dtype == torch.bfloat16


def test_tensors_have_the_names_of_published_files() -> None:
    names = names_in_files(text_encoder(600))
    assert names["model.language_model.layers.0.mlp.up_proj.weight"] == "model.layers.0.mlp.up_proj.weight"
    assert names["model.visual.patch_embed.proj.weight"] == "visual.patch_embed.proj.weight"
    assert len(set(names.values())) == len(names)


def test_shards_hold_every_tensor_once_and_their_index_says_where(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    tensors = {f"{i}.weight": RandomTensor(f"{i}.weight", (4, 8), torch.bfloat16, cpu, 0) for i in range(5)}
    write_shards(tmp_path, "model", tensors, limit=130)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5 * 64 and set(index["weight_map"]) == set(tensors)
    names = [name for path in headers.weight_files(tmp_path, "model") for name in file_tensors(path)]
    assert sorted(names) == sorted(tensors)
    stored = file_tensors(tmp_path / index["weight_map"]["4.weight"])["4.weight"]
    assert torch.equal(stored.read(), tensors["4.weight"].read())


def test_a_cut_denoiser_keeps_the_proportion_of_its_stacks() -> None:
    flux = SIZES["flux"]
    for blocks, stacks in {57: (19, 38), 12: (4, 8), 2: (1, 1), 3: (1, 2)}.items():
        config = flux.config(flux.denoiser(), blocks)
        assert (config["num_layers"], config["num_single_layers"]) == stacks
    assert flux.config(flux.denoiser())["num_single_layers"] == 38


def _process(began: float, events: list[Event], rows: list[dict[str, Any]]) -> Process:
    return Process(began=began, ended=began + 100, exit_code=0, events=events, rows=rows)


def _rows(seconds: list[float], compiled: list[float], first: int = 1, began: float = 0.0) -> list[dict[str, Any]]:
    counts = {"graphs": 4, "recompiles": 0, "breaks": 0, "cache_misses": 7, "loss_smooth": 0.5}
    return [
        {"step": first + i, "t": began + i, "s_per_step": s, "compile_seconds": c} | counts
        for i, (s, c) in enumerate(zip(seconds, compiled, strict=True))
    ]


def test_figures_are_those_that_the_run_told() -> None:
    gib = 2**30
    events = [
        MemoryEstimateEvent(t=1.0, card={"name": "A GPU"}),
        PhaseEvent(t=3.0, phase="scan"),
        PhaseEvent(t=5.0, phase="train"),
        CompileStateEvent(t=5.0, state="compiled", planned=4),
        PhaseEvent(t=15.0, phase="save"),
        PhaseEvent(t=16.0, phase="train"),
        CudaGraphsEvent(t=17.0, state="recorded", kept=2 * gib),
        MemoryPeakEvent(
            t=99.0,
            vram_peak=12 * gib,
            vram_reserved_peak=13 * gib,
            vram_estimated=11 * gib,
            vram_compared=10 * gib,
            words="w",
            ram_peak=gib,
            ram_estimated=gib,
        ),
    ]
    rows = _rows([30.0, 2.0, 1.0, 1.0, 9.0, 1.1, 1.2, 1.0, 1.1, 1.2], [20.0, 21, 21, 21, 25, 25, 25, 25, 25, 25])
    first = _process(0.0, events, rows)
    resumed = _process(200.0, [], _rows([3.0, 1.0], [1.0, 1.0], first=11, began=212.5))
    row = figures(Trial(run=None, first=first, resumed=resumed, error=""))
    assert phases(first) == {"start": 3.0, "scan": 2.0, "train": 94.0, "save": 1.0}
    assert row["device"] == "A GPU" and row["warm_up_steps"] == 5 and row["s_per_step"] == 1.1
    assert (row["graphs"], row["planned_graphs"], row["compile_s"]) == (4, 4, 25.0)
    # the run says what its estimate is compared with: here it did not expect recordings
    assert row["peak_allocated_gb"] == 12.0 and row["recordings_gb"] == 2.0 and row["estimate_percent"] == 110.0
    assert row["resumed_from"] == 10 and row["resume_first_step_s"] == 12.5 and row["total_s"] == 300.0


def test_a_failure_is_told_in_the_runs_words_or_else_in_the_trainers(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("one\nerror: no base model\n")
    assert failure(None, log) == "one error: no base model"
    run = Run.create_empty(tmp_path, "r")
    assert failure(run, log).endswith("no base model")
    run.finish("failed", error={"text": "It has 2 blocks", "cause": None, "remedy": "Set 2 or less."})
    assert failure(run, log) == "It has 2 blocks. Set 2 or less."


def test_too_few_steps_behind_the_last_compile_count_from_the_middle() -> None:
    assert warm_from(_rows([1.0] * 6, [1, 1, 1, 1, 2, 2])) == 3
    assert warm_from(_rows([1.0] * 6, [0] * 6)) == 1
    assert warm_from([]) == 0


def test_the_page_is_made_of_the_rows_alone(tmp_path: Path) -> None:
    lines: list[str] = []
    assert report.main(["--check"], lines.append) == 0, "".join(lines)
    assert report.main([], lines.append, tmp_path) == 0
    assert "No rehearsal is recorded yet." in (tmp_path / "rehearsals.md").read_text()
    row = {"size": "flux", "blocks": 12, "resolution": 1024, "settings": ["a.b=1"], "s_per_step": 0.5, "graphs": 4}
    row |= {"planned_graphs": 4, "estimate_percent": 104.2, "command": "python x", "error": ""}
    report.add_row(tmp_path / "rehearsals", row)
    report.add_row(tmp_path / "rehearsals", row | {"error": "out of | memory", "note": "Run by hand."})
    assert report.main(["--check"], lines.append, tmp_path) == 1
    assert report.main([], lines.append, tmp_path) == 0
    page = (tmp_path / "rehearsals.md").read_text()
    assert "| flux, 12 blocks, 1024 px | a.b=1 | 0.5 |" in page and "| 4 / 4 |" in page and "104.2 %" in page
    assert "failed: out of \\| memory" in page and page.count("    python x\n") == 1
    assert "\nRow 2: Run by hand.\n" in page


def test_the_table_and_the_runs_own_comparison_agree() -> None:
    for row in report.read_rows(report.DOCS / "rehearsals"):
        (off,) = re.findall(r"\(([+-]\d+) %\)", row["memory_words"])
        assert row["estimate_percent"] - 100 == pytest.approx(int(off), abs=0.51), row["command"]
