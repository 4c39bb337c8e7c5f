"""Whole runs of transformers in the same words: planned graphs, diffusers' sample, a resumed run, swap, trimming.

What one family alone does is in its own folder in tests/models/; FLUX's runs are in tests/training/.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from backend.config.schema import Config
from backend.runs.folder import Run
from tests.tiny import comfy_maps, qwen_runs
from tests.tiny.framepack import SECTIONS, write_sections
from tests.tiny.training import (
    events,
    family_config,
    lora_of,
    rows,
    straight_run_that_a_resumed_one_repeats,
    train_here,
)

# Padded to the size that is trained. Runs of HunyuanVideo and Qwen-Image-Edit draw larger ones, in graphs of their own.
PROMPT = {"prompt": "a red circle", "negative_prompt": "a dog", "width": 48, "height": 80, "steps": 3, "seed": 5}
PROMPT |= {"true_cfg_scale": 4.0}
# 512 is what the family pads captions to, which trimming leaves out.
TEXT_LENGTH = {"anima": 512, "qwen_image": 64, "sd3": 24, "wan": 512, "hunyuan_video": 64, "framepack": 64}
TRIMMED = {"anima": [64], "qwen_image": [16, 64], "wan": [64], "hunyuan_video": [16, 64], "framepack": [16, 64]}


@pytest.fixture(scope="module")
def sections_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sections(tmp_path_factory.mktemp("clips"))


@pytest.mark.parametrize("family", ["anima", "qwen_image", "sd3", "wan", "hunyuan_video", "framepack"])
def test_a_resumed_run_is_the_straight_one_and_swap_and_trimming_change_nothing(
    family: str, request: pytest.FixtureRequest, sections_folder: Path, image_folder: Path, tmp_path: Path
) -> None:
    base = request.getfixturevalue(f"tiny_{family}")
    images, own = (sections_folder, SECTIONS) if family == "framepack" else (image_folder, {})

    def settings(compile: dict[str, Any] | None = None, **changes: dict[str, Any]) -> Config:  # noqa: A002
        sections = {**own, "model": {"text_length": TEXT_LENGTH[family]}, **changes}
        sections["compile"] = {"shape_mode": "static"} | (compile or {})
        return family_config(family, base, images, tmp_path, **sections)

    straight = straight_run_that_a_resumed_one_repeats(settings, steps=2)
    if family in TRIMMED:
        buckets = {"caption_buckets": TRIMMED[family]}
        trimmed, code = train_here(settings(compile=buckets, training={"max_train_steps": 2}))
        assert code == 0, events(trimmed, "error")
        losses = [row["loss"] for row in rows(straight)]
        assert [row["loss"] for row in rows(trimmed)] == pytest.approx(losses, rel=1e-4)
    if family in NATIVE_NAMES:
        # ComfyUI's map of these families has native names alone
        assert {key.split(".")[0] for key in lora_of(straight)} <= comfy_maps.published(NATIVE_NAMES[family]())


def _anima_names() -> dict[str, torch.Tensor]:
    from tests.tiny.anima import make_tiny_denoiser
    from tests.tiny.anima_pipeline import published

    return published(make_tiny_denoiser().state_dict(), {}, "")


def _wan_names() -> dict[str, torch.Tensor]:
    from tests.tiny.wan import make_tiny_denoiser, published

    return published(make_tiny_denoiser().state_dict())


NATIVE_NAMES = {"anima": _anima_names, "wan": _wan_names}

# Settings of the run whose sample diffusers draws; few layers of every kind, since each is traced. That diffusers reads
# all of a family is in its test_files.py.
DRAWN: dict[str, dict[str, dict[str, Any]]] = {
    "anima": {"model": {"text_length": 64}, "saving": {"save_layout": "diffusers"}, "network": {
        "targets_include": [r".*\.attn\d\.to_v", "ff.net.2"]}},
    "qwen_image": {"compile": {"caption_buckets": [16, 64]}, "network": {"targets_include": qwen_runs.TRACED}},
    "sd3": {"model": {"text_length": 24}, "saving": {"save_layout": "diffusers"}, "network": {
        "targets_include": [r".*\.attn2?\.to_v", "attn.add_q_proj", "ff.net.2", "ff_context.net.0.proj"]}},
}  # fmt: skip


def pipeline_of(
    family: str, base: Path, prompt: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Callable[[], np.ndarray]]:
    """diffusers' pipeline, and what draws `prompt` by it, (H, W, 3) from 0 to 255."""
    if family == "anima":
        from tests.tiny.anima_pipeline import pipeline_of as modular_pipeline
        from tests.tiny.anima_pipeline import without_torchvision

        without_torchvision(monkeypatch)
        pipeline = modular_pipeline(base, guidance=4.0)
        more = {"output": "images", "max_sequence_length": 64}
    elif family == "qwen_image":
        from diffusers import QwenImagePipeline

        pipeline = QwenImagePipeline.from_pretrained(base)
        more = {"true_cfg_scale": 4.0, "max_sequence_length": 64}
    else:
        from diffusers import StableDiffusion3Pipeline

        pipeline = StableDiffusion3Pipeline.from_pretrained(base)
        more = {"guidance_scale": 4.0, "max_sequence_length": 24}
    pipeline.set_progress_bar_config(disable=True)

    def draw() -> np.ndarray:
        names = {name: prompt[name] for name in ("prompt", "negative_prompt", "width", "height")}
        source = torch.Generator("cpu").manual_seed(prompt["seed"])
        drawn = pipeline(**names, num_inference_steps=prompt["steps"], generator=source, **more)
        return np.asarray(drawn[0] if family == "anima" else drawn.images[0]).astype(int)

    return pipeline, draw


@pytest.mark.slow
@pytest.mark.parametrize("family", ["anima", "qwen_image", "sd3"])
def test_a_run_makes_the_planned_graphs_and_draws_diffusers_sample(
    family: str, request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, sections = request.getfixturevalue(f"tiny_{family}"), dict(DRAWN[family])
    sections["compile"] = {"compile": True, "compile_backend": "eager", "shape_mode": "static"} | sections.get(
        "compile", {}
    )
    cfg = family_config(
        family, base, image_folder, tmp_path, **sections, validation={"validate_at_start": True},
        sampling={"prompts": [PROMPT, {**PROMPT, "lora_scale": 0.0}], "sample_at_start": True},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    graphs_are_those_planned(run)
    if family == "sd3":
        # of each of the three block classes one graph to train and one without gradients
        assert rows(run)[-1]["graphs"] == 6
    assert [event["step"] for event in events(run, "validation")] == [0, 4]
    assert not [event for event in events(run, "warning") if "ComfyUI" in event["text"]]
    samples = {(s.step, s.prompt_index): Image.open(s.path) for s in run.samples()}
    assert samples[4, 1].tobytes() == samples[0, 1].tobytes() == samples[0, 0].tobytes()
    # diffusers' pipeline and LoRA mixin draw the same picture from the file: strength, names, noise levels, guidance
    pipeline, draw = pipeline_of(family, base, PROMPT, monkeypatch)
    without = draw()
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    ours = np.asarray(samples[4, 0]).astype(int)
    assert np.abs(ours - draw()).max() <= 1
    assert np.abs(ours - without).max() > 3
    assert np.abs(np.asarray(samples[0, 0]).astype(int) - without).max() <= 1


def graphs_are_those_planned(run: Run) -> None:
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
