"""Runs on a card: formats, memory columns, no wait for the device inside a step, the fit check."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backend.training import expected_memory
from backend.training.trainer import Trainer
from tests.tiny.training import config, events, rows, train_here

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["auto", "fp16", "no"])
def test_each_precision_trains_and_tells_its_memory(
    precision: str, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2}
    cfg = config(
        tiny_flux, image_folder, tmp_path, training={"mixed_precision": precision, "max_train_steps": 5},
        sampling={"prompts": [prompt]}, dataset={"validation_split": 0.25},
        model={"weight_dtype": "fp16" if precision == "fp16" else "auto"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    for row in rows(run):
        assert 0 < row["vram_allocated"] <= row["vram_reserved"] <= row["vram_total"] and row["vram_peak"] > 0
    assert run.samples() and events(run, "validation")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What torch calls a synchronizing operation inside of loss, clipping and counting, after the first steps."""
    seen: list[str] = []

    def watched(name: str) -> None:
        plain = getattr(Trainer, name)

        def call(self: Trainer, *arguments: object) -> object:
            if self.position.step < 2:
                return plain(self, *arguments)
            torch.cuda.set_sync_debug_mode("warn")
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    return plain(self, *arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                seen.extend(f"{name}: {w.message}" for w in caught if "synchroniz" in str(w.message))

        monkeypatch.setattr(Trainer, name, call)

    for name in ("loss", "clip_gradients", "count_batch", "count_step"):
        watched(name)
    yield seen


def test_no_part_of_a_step_waits_for_the_device(
    waits: list[str], tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """But for the passes that `cuda_graphs = "auto"` times to see whether recording pays."""
    cfg = config(tiny_flux, image_folder, tmp_path, compile={"cuda_graphs": "off"})
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert waits == []


def test_a_model_that_can_not_fit_is_refused_before_it_loads(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_memory, "OUTSIDE", 10**13)
    run, code = train_here(config(tiny_flux, image_folder, tmp_path))
    assert code == 2
    (error,) = events(run, "error")
    assert "does not fit the GPU" in error["text"] and "weights" in error["text"] and "free of" in error["text"]
    assert not any(event["phase"] in ("cache_latents", "load") for event in events(run, "phase"))
