"""Runs whose passes are recorded: the plain run's losses, validation and samples between the steps, and what is told.

On a CPU `tests.tiny.tape` stands for CUDA's graphs; the same runs use real ones where there is a card.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backend.compile.cuda_graphs.graph_trial import SPARE
from backend.config.schema import Config, with_values
from backend.families.table import family
from backend.memory.meter import Meter
from backend.plan.memory.settings import unrecordable
from backend.runs.events import EventWriter
from backend.training.compile_setup import _write_recording, record_passes
from tests.tiny.event_lines import event_lines
from tests.tiny.tape import Card
from tests.tiny.training import config, events, rows, train_here

DROPOUT = {"network_dropout": 0.2, "rank_dropout": 0.2, "module_dropout": 0.2}
OFF = {"gradient_checkpointing": False}
# Several settings at once: each is compared bit by bit, and one that a recording got wrong would show.
ON_CPU: dict[str, dict[str, Any]] = {
    "accumulated dropout": {"training": {**OFF, "gradient_accumulation_steps": 2}, "network": DROPOUT},
    "recomputed loha": {
        "training": {"mixed_precision": "bf16"},
        "memory": {"checkpointing_kind": "block"},
        "network": {"network_type": "loha"},
    },
    "selective dora": {
        "training": {"ema": True},
        "memory": {"checkpointing_kind": "selective"},
        "network": {"network_type": "dora"},
    },
    "bf16": {
        "training": {**OFF, "mixed_precision": "bf16"},
        "network": {"lora_weight_dtype": "bf16", "scale_weight_norms": 0.5},
    },
}
ON_CARD: dict[str, dict[str, Any]] = {
    "eager": {"training": OFF},
    "recomputed": {"memory": {"checkpointing_kind": "block"}},
    "fp16": {"training": {**OFF, "mixed_precision": "fp16"}},
    "checkpointed": {"compile": {"compile": True}, "training": {"gradient_checkpointing": True}},
    "compiled": {"compile": {"compile": True}, "training": {**OFF, "gradient_accumulation_steps": 2}},
    "dropout": {"compile": {"compile": True}, "training": OFF, "network": DROPOUT},
}


def pair(base: Path, images: Path, where: Path, more: dict[str, Any]) -> list[Any]:
    """Folders of the run without and with recorded passes."""
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2}
    runs = []
    for how in ("off", "on"):
        settings = {**more, "compile": {"compile": False, **more.get("compile", {}), "cuda_graphs": how}}
        settings["training"] = {"max_train_steps": 7, **more.get("training", {})}
        settings["network"] = {"targets_include": ["attn.to_q", "proj_mlp"], **more.get("network", {})}
        cfg = config(
            base, images, where, dataset={"validation_split": 0.25}, **settings,
            validation={"validate_every_n_steps": 3}, sampling={"prompts": [prompt], "sample_every_n_steps": 4},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        assert not [event for event in events(run, "warning") if "CUDA graph" in event["text"]]
        runs.append(run)
    return runs


def assert_recorded(recorded: Any, plain: Any, compiled: bool) -> None:
    report = list(events(recorded, "cuda_graphs"))
    assert report[-1]["state"] == "recorded" and report[-1]["shapes"] == len(report) and report[-1]["kept"] > 0
    assert not list(events(plain, "cuda_graphs"))
    if not compiled:
        untimed = [row["step"] for row in rows(recorded) if row["s_per_step"] is None]
        assert len(untimed) == len(report), "a step in which a shape is recorded is not timed"
        assert rows(recorded)[-1]["compile_seconds"] > 0 == rows(plain)[-1]["compile_seconds"]


@pytest.mark.parametrize("name", ON_CPU)
def test_on_a_cpu_a_run_with_recorded_passes_is_the_plain_run(
    name: str, card: Card, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    plain, recorded = pair(tiny_flux, image_folder, tmp_path, ON_CPU[name])
    assert [row["loss"] for row in rows(recorded)] == [row["loss"] for row in rows(plain)]
    assert [row["grad_norm"] for row in rows(recorded)] == [row["grad_norm"] for row in rows(plain)]
    assert_recorded(recorded, plain, False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_CARD)
def test_a_run_with_recorded_passes_is_the_plain_run(
    name: str, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    plain, recorded = pair(tiny_flux, image_folder, tmp_path, ON_CARD[name])
    assert [row["loss"] for row in rows(recorded)] == pytest.approx([row["loss"] for row in rows(plain)], rel=1e-3)
    assert_recorded(recorded, plain, "compile" in ON_CARD[name])


def test_without_a_card_nothing_is_recorded_and_said_so(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    messages = []
    for how in ("auto", "on"):
        cfg = config(
            tiny_flux, image_folder, tmp_path, compile={"compile": False, "cuda_graphs": how},
            training={"gradient_checkpointing": False, "max_train_steps": 1},
        )  # fmt: skip
        run, _ = train_here(cfg)
        messages.append([e["text"] for e in events(run, "warning") if "cuda_graphs" in e["text"]])
    assert messages == [[], ["cuda_graphs has no effect on cpu"]], "auto has nothing to say of a CPU"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, ""),
        ({"training.gradient_checkpointing": False, "network.network_dropout": 0.1}, ""),
        ({"memory.checkpointing_kind": "block", "compile.compile": False}, ""),
        ({"memory.blocks_to_swap": 2}, "fixed addresses"),
        ({"memory.checkpointing_kind": "offload"}, "copies to RAM"),
        ({"network.rank_dropout": 0.1}, "second forward pass"),
        ({"compile.compile_backend": "cudagraphs"}, "records by itself"),
        ({"compile.compile_blocks": [{"blocks": "double:0", "backend": "cudagraphs"}]}, "records by itself"),
    ],
)
def test_auto_leaves_out_what_cannot_be_recorded(values: dict[str, Any], why: str) -> None:
    reason = unrecordable(with_values(Config(), values))
    assert why in reason and bool(why) == bool(reason)


@pytest.mark.parametrize(("name", "spare"), [("flux", SPARE), ("sdxl", 0)])
def test_auto_asks_for_more_memory_where_kernels_are_large(name: str, spare: int, card: Card, tmp_path: Path) -> None:
    values = {"cfg": Config(), "device": torch.device("cpu"), "family": family(name)}
    trainable = SimpleNamespace(denoiser=torch.nn.Linear(2, 2))
    made = record_passes(SimpleNamespace(**values), trainable, EventWriter(tmp_path / "events.jsonl"))
    assert made is not None and made.trial is not None and made.trial.spare == spare


def recorder(**facts: Any) -> Any:
    usual = {"failed": "", "full": "", "trial": None, "recordings": {}, "seconds": 1.25, "kept": 7}
    usual |= {"plain_seconds": 0.62, "replay_seconds": 0.134}
    return SimpleNamespace(**{**usual, **facts})


def test_what_a_recorder_found_is_told(tmp_path: Path) -> None:
    """A failure is a warning only where recording was asked for."""
    writer = EventWriter(tmp_path / "events.jsonl")
    for setting, facts in (
        ("auto", {"failed": "no"}),
        ("on", {"failed": "no"}),
        ("auto", {"trial": SimpleNamespace(against="it does not pay")}),
        ("on", {"recordings": {1: 1, 2: 2}, "full": "short"}),
        ("auto", {}),
    ):
        _write_recording(writer, setting, recorder(**facts))
    lines = event_lines(writer.path)
    assert [event["kind"] for event in lines] == ["cuda_graphs", "warning", "cuda_graphs", "cuda_graphs", "cuda_graphs"]
    assert [event.get("state") for event in lines] == ["failed", None, "failed", "left out", "recorded"]
    assert lines[1]["text"] == "CUDA graphs are left out: no" and "off" in lines[1]["remedy"]
    assert lines[3]["reason"] == "it does not pay"
    assert (lines[4]["plain_ms"], lines[4]["replay_ms"]) == (620.0, 134.0)
    assert (lines[4]["shapes"], lines[4]["seconds"], lines[4]["kept"], lines[4]["reason"]) == (2, 1.25, 7, "short")


def test_what_recordings_keep_counts_with_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100)
    meters = (Meter(torch.device("cpu"), each) for each in (None, recorder(kept=50)))
    assert [meter.vram_peak() for meter in meters] == [100, 150]
