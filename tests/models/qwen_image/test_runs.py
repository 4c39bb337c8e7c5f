"""Whole runs of Qwen-Image: train, sample, validate, save, reload in diffusers' pipeline, stop and resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import QwenImagePipeline
from PIL import Image

from tests.tiny.qwen_runs import PROMPT, settings, single_files
from tests.tiny.training import events, lora_of, rows, same, train_here


@pytest.mark.slow
def test_a_run_makes_the_planned_graphs_and_draws_diffusers_sample(
    tiny_qwen_image: Path, image_folder: Path, tmp_path: Path
) -> None:
    cfg = settings(
        tiny_qwen_image, image_folder, tmp_path,
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static", "caption_buckets": [16, 64]},
        sampling={"prompts": [PROMPT, {**PROMPT, "lora_scale": 0.0}], "sample_at_start": True},
        validation={"validate_at_start": True},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [event["step"] for event in events(run, "validation")] == [0, 4]
    assert not [event for event in events(run, "warning") if "ComfyUI" in event["text"]]
    samples = {(s.step, s.prompt_index): Image.open(s.path) for s in run.samples()}
    assert samples[4, 1].tobytes() == samples[0, 1].tobytes() == samples[0, 0].tobytes()
    # diffusers' pipeline and LoRA mixin draw the same picture from the kohya file: strength, names, levels, guidance
    pipeline = QwenImagePipeline.from_pretrained(tiny_qwen_image)
    pipeline.set_progress_bar_config(disable=True)

    def draw() -> np.ndarray:
        drawn = pipeline(
            "a red circle", negative_prompt="a dog", true_cfg_scale=4.0, width=64, height=96, num_inference_steps=3,
            max_sequence_length=64, generator=torch.Generator("cpu").manual_seed(5),
        )  # fmt: skip
        return np.asarray(drawn.images[0]).astype(int)

    without = draw()
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    ours = np.asarray(samples[4, 0]).astype(int)
    assert np.abs(ours - draw()).max() <= 1
    assert np.abs(ours - without).max() > 3
    assert np.abs(np.asarray(samples[0, 0]).astype(int) - without).max() <= 1


def test_a_resumed_run_is_the_straight_one_and_trimming_and_swap_change_nothing(
    tiny_qwen_image: Path, image_folder: Path, tmp_path: Path
) -> None:
    whole = {"compile": {"shape_mode": "static"}}
    straight, code = train_here(settings(tiny_qwen_image, image_folder, tmp_path, **whole))
    assert code == 0, events(straight, "error")
    half, _ = train_here(settings(tiny_qwen_image, image_folder, tmp_path, training={"max_train_steps": 2}, **whole))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, code = train_here(settings(tiny_qwen_image, image_folder, tmp_path, **whole), half, resume=True)
    assert code == 0, events(half, "error")
    losses = [row["loss"] for row in rows(straight)]
    assert [row["loss"] for row in rows(half)] == losses and len(losses) == 4
    assert same(lora_of(half, Path(events(half, "done")[-1]["lora"]).name), lora_of(straight))
    trimmed_cfg = settings(
        tiny_qwen_image, image_folder, tmp_path, compile={"shape_mode": "static", "caption_buckets": [16, 64]},
        training={"gradient_checkpointing": True}, memory={"blocks_to_swap": 3},
    )  # fmt: skip
    trimmed, code = train_here(trimmed_cfg)
    assert code == 0, events(trimmed, "error")
    assert [event["blocks"] for event in events(trimmed, "swap") if event["moved"]] == [3]
    assert [row["loss"] for row in rows(trimmed)] == pytest.approx(losses, rel=1e-4)


def test_from_three_files_trains_samples_and_saves(tiny_qwen_image: Path, image_folder: Path, tmp_path: Path) -> None:
    """As ComfyUI's users have it: transformer, text encoder and VAE in a file each, and the tokenizer's folder."""
    files = single_files(tiny_qwen_image / "tokenizer", tmp_path / "files")
    cfg = settings(
        tiny_qwen_image, image_folder, tmp_path, model=files,
        sampling={"prompts": [PROMPT]}, training={"max_train_steps": 2},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 2 and events(run, "sample")
    assert len(lora_of(run)) == 3 * 3 * 12
