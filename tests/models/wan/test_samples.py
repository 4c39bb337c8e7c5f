"""Samples of Wan: the clip that diffusers' own pipeline makes, and what a run writes of it."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline
from PIL import Image

from backend.config.schema import SamplePrompt
from backend.families.wan.facts import FACTS
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives.flow_matching import EulerSteps
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.sample_clips import frames_of
from backend.training.sampling import PromptText, draw_latent
from tests.tiny.training import config, events, train_here

code = load_family("wan")
CPU = torch.device("cpu")
CLIP = {"prompt": "a red ball rolls", "width": 48, "height": 32, "steps": 2, "seed": 3}


@pytest.mark.parametrize("true_cfg", [1.0, 3.0])
def test_a_sample_is_the_pipelines_clip(tiny_wan: Path, true_cfg: float) -> None:
    pipeline = WanPipeline.from_pretrained(tiny_wan)
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline.set_progress_bar_config(disable=True)
    prompt = SamplePrompt(**CLIP | {"negative_prompt": "blue", "true_cfg_scale": true_cfg})
    theirs = pipeline(
        prompt.prompt,
        negative_prompt=prompt.negative_prompt,
        guidance_scale=true_cfg,
        width=48,
        height=32,
        num_frames=9,
        num_inference_steps=2,
        generator=torch.Generator("cpu").manual_seed(3),
        output_type="np",
    ).frames[0]
    text, negative = code.load_text(tiny_wan, LoadOptions(torch.float32, CPU)).encode(["a red ball rolls", "blue"], 512)
    shapes = ShapeRuntime("off")
    latent = draw_latent(
        prompt,
        PromptText(text, negative if true_cfg > 1 else None),
        lambda x, sigma, said, guidance: code.predict(pipeline.transformer, x, sigma, said, guidance, shapes),
        lambda steps, tokens: EulerSteps(pipeline.scheduler.sigmas.tolist()),
        FACTS.geometry(tiny_wan),
        CPU,
        frames=9,
    )
    assert latent.shape[1:] == (3, 4, 6)
    pixels = code.load_vae(tiny_wan, LoadOptions(torch.float32, CPU)).decode(latent[None])[0]
    ours = np.stack([*frames_of(pixels)]).astype(int)
    assert ours.shape == (9, 32, 48, 3) == theirs.shape
    assert np.abs(ours - (theirs * 255).round().astype(int)).max() <= 1


def test_a_run_writes_clips_of_the_models_lengths_and_pictures(
    tiny_wan: Path, image_folder: Path, tmp_path: Path
) -> None:
    prompts = [CLIP | {"frames": 15}, CLIP | {"frames": 1}, CLIP | {"frames": 5, "width": 32}]
    cfg = config(
        tiny_wan,
        image_folder,
        tmp_path,
        model={"family": "wan", "text_length": None},
        training={"max_train_steps": 1},
        sampling={"prompts": prompts, "sample_at_start": True},
        video={"target_fps": 8.0},
    )
    run, exit_code = train_here(cfg)
    assert exit_code == 0, events(run)[-3:]
    drawn = events(run, "sample")
    assert [(each["step"], each["prompt_index"]) for each in drawn] == [(s, p) for s in (0, 1) for p in (0, 1, 2)]
    assert [each["file"].rpartition(".")[2] for each in drawn[:3]] == ["mp4", "png", "mp4"]
    assert drawn[1].get("sheet") is None and (run.path / drawn[0]["sheet"]).is_file()
    for event, frames, size in ((drawn[3], 13, (48, 32)), (drawn[5], 5, (32, 32))):
        with av.open(str(run.path / event["file"])) as container:
            shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
            made = json.loads(container.metadata["comment"])
            assert container.streams.video[0].average_rate == 8
        assert len(shown) == frames and shown[0].shape == (size[1], size[0], 3)
        assert (made["prompt"], made["step"], made["fps"]) == ("a red ball rolls", 1, 8.0)
        with Image.open(run.path / event["sheet"]) as sheet:
            assert f"Frames: {frames}, FPS: 8" in sheet.text["parameters"]
            assert json.loads(sheet.text["monotile"]) == made
    assert Image.open(run.path / drawn[1]["file"]).size == (48, 32)
    assert [sample.path.name for sample in run.samples()] == [Path(each["file"]).name for each in drawn]
    (plan,) = events(run, "plan")
    notes = json.dumps(plan)
    assert "15 is no length of this model's" in notes, notes
