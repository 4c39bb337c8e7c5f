"""Whole runs: what they leave behind, how they stop, and that a resumed one is a straight one bit by bit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from PIL import Image

from tests.tiny.training import config, events, lora_of, rows, same, train_here


def test_a_run_leaves_rows_events_samples_a_lora_and_a_state(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a run on pictures opens no clip, which would import PyAV
    monkeypatch.setitem(sys.modules, "av", None)
    prompt = {"prompt": "a red circle", "width": 64, "height": 32, "steps": 2}
    cfg = config(
        tiny_flux, image_folder, tmp_path,
        dataset={"validation_split": 0.25, "trigger_word": "sks"},
        sampling={
            "prompts": [prompt, {**prompt, "lora_scale": 0.0}], "sample_every_n_steps": 3, "sample_at_start": True,
        },
        validation={"validate_at_start": True, "validate_every_n_steps": 4},
        saving={"save_every_n_steps": 2, "metadata_author": "me"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    status = run.status()
    assert (status.state, status.step, status.total_steps) == ("done", 6, 6)
    table = rows(run)
    assert [row["step"] for row in table] == [1, 2, 3, 4, 5, 6]
    for row in table:
        assert row["loss"] > 0 and row["grad_norm"] > 0 and row["ram"] > 1e7 and row["s_per_step"] > 0
    assert table[0]["lr"] == 0 or table[0]["lr"] <= 0.01
    assert [e["step"] for e in events(run, "validation")] == [0, 4, 6]
    assert set(events(run, "validation")[0]["sigma_losses"]) == {"0.05", "0.1", "0.2", "0.35"}
    assert [(e["step"], e["prompt_index"]) for e in events(run, "sample")] == [
        (s, i) for s in (0, 3, 6) for i in (0, 1)
    ]
    assert [e["step"] for e in events(run, "checkpoint")] == [2, 4, 6]
    done = events(run, "done")[0]
    assert Path(done["lora"]).is_file() and done["validation"]["held out"]["first"] > 0 and done["seconds"] > 0
    samples = {(s.step, s.prompt_index): Image.open(s.path) for s in run.samples()}
    assert samples[6, 0].size == (64, 32)
    # scale 0 is the base exactly, whatever was trained
    assert samples[6, 1].tobytes() == samples[0, 1].tobytes() == samples[0, 0].tobytes()
    assert samples[6, 0].tobytes() != samples[0, 0].tobytes()
    tensors = lora_of(run)
    # two double and two single blocks, whose query, key and value are one layer by FLUX's own names
    assert len(tensors) == 3 * (2 * 8 + 2 * 2) and all(key.startswith("lora_unet_") for key in tensors)
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    phases = [e["phase"] for e in events(run, "phase")]
    for phase in ("scan", "cache_latents", "cache_text", "load", "train", "validate", "sample", "save"):
        assert phase in phases, phase
    assert {e["total"] for e in events(run, "phase") if e["phase"] == "validate"} == {2}
    assert events(run, "plan") and events(run, "step_total")[0]["total"] == 6


def test_the_second_run_reads_the_caches_and_repeats_every_number(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cfg = config(tiny_flux, image_folder, tmp_path, network={"network_dropout": 0.2})
    first, _ = train_here(cfg)
    torch.manual_seed(123)
    second, _ = train_here(cfg)
    assert same(lora_of(first), lora_of(second))
    assert [r["loss"] for r in rows(first)] == [r["loss"] for r in rows(second)]
    assert "Latents: 8 encoded" in caplog.text and "Latents: 0 encoded" in caplog.text


def test_diffusers_draws_the_trainers_own_sample_from_base_and_lora(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """The strength of a trained file, end to end: rank 4, alpha 2, and a half-strength prompt."""
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 3, "guidance_scale": 2.0, "seed": 5}
    cfg = config(
        tiny_flux, image_folder, tmp_path,
        sampling={"prompts": [prompt, {**prompt, "lora_scale": 0.5}]},
        optimizer={"learning_rate": 0.03},
        # diffusers knows kohya's names at FLUX's real width alone
        saving={"save_layout": "diffusers"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    pipeline = FluxPipeline.from_pretrained(tiny_flux)
    pipeline.set_progress_bar_config(disable=True)

    def draw(scale: float | None) -> np.ndarray:
        drawn = pipeline(
            "a red circle", width=64, height=64, num_inference_steps=3, guidance_scale=2.0, max_sequence_length=16,
            generator=torch.Generator("cpu").manual_seed(5),
            joint_attention_kwargs=None if scale is None else {"scale": scale},
        )  # fmt: skip
        return np.asarray(drawn.images[0]).astype(int)

    base = draw(None)
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    ours = [np.asarray(Image.open(sample.path)).astype(int) for sample in run.samples()]
    for mine, scale in zip(ours, (1.0, 0.5), strict=True):
        assert np.abs(mine - draw(scale)).max() <= 1
    assert np.abs(ours[0] - base).max() > 3 and np.abs(ours[0] - ours[1]).max() > 1
