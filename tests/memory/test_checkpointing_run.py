"""Checkpointing in whole runs: the settings reach the blocks, torch's partitioner and the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._functorch.config

from backend.memory import checkpointing
from tests.tiny.training import config, events, lora_of, rows, same, train_here


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    checkpointing.set_activation_budget(None)


def test_the_settings_reach_the_run(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    """Every kind trains the same LoRA; offload says what it is worth on a CPU."""
    saved = {}
    for kind in ("block", "offload", "selective"):
        cfg = config(
            tiny_flux, image_folder, tmp_path,
            memory={"checkpointing_kind": kind}, training={"max_train_steps": 2},
            network={"network_dropout": 0.2, "rank_dropout": 0.2, "module_dropout": 0.2,
                     "targets_include": ["attn.to_q", "ff.net.2"]},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        saved[kind] = lora_of(run)
        assert ("saves nothing here" in str(events(run, "warning"))) == (kind == "offload")
    assert same(saved["block"], saved["offload"]) and same(saved["block"], saved["selective"])


def test_a_run_recomputes_within_its_graphs(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The setting and the budget reach compile, torch's partitioner and the log; the losses are those without."""
    losses = {}
    for within, backend, budget in ((True, "aot_eager_decomp_partition", None), (False, "eager", 0.3)):
        caplog.clear()
        cfg = config(
            tiny_flux, image_folder, tmp_path, memory={} if budget is None else {"activation_memory_budget": budget},
            training={"max_train_steps": 2, "gradient_checkpointing": within},
            compile={"compile": True, "compile_backend": backend,
                     "compile_blocks": [{"blocks": "double", "compile": False}]},
            network={"targets_include": ["attn.to_q"]},
        )  # fmt: skip
        with caplog.at_level("INFO"):
            run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        assert ("checkpointing within the graphs" in caplog.text) == within
        assert torch._functorch.config.activation_memory_budget == (0.0 if within else budget)
        losses[within] = [row["loss"] for row in rows(run)]
    assert losses[True] == pytest.approx(losses[False], rel=1e-5)
