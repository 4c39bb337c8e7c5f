"""Whole runs on clips of Wan models that start from a picture (wan_i2v), and of Wan 2.2 5B (wan22_5b)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanImageToVideoPipeline, WanPipeline
from PIL import Image

from backend.config.schema import Config, SamplePrompt
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives.flow_matching import EulerSteps
from backend.runs.folder import Run
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.sample_clips import frames_of
from backend.training.sampling import PromptText, draw_latent
from tests.conftest import draw_pictures
from tests.tiny.clips import write_clip
from tests.tiny.training import config, events, lora_of, resumed_from, rows, train_here
from tests.tiny.wan_loras import assert_comfyui_takes, assert_diffusers_holds

CPU = torch.device("cpu")


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    """Two clips of 20 frames, and two pictures, each with a caption."""
    folder = draw_pictures(tmp_path / "footage", ((64, 64), (96, 64)))
    for number, size in enumerate(((64, 48), (48, 64))):
        write_clip(folder / f"clip_{number}.mp4", 20, size=size)
        (folder / f"clip_{number}.txt").write_text(f"a grey clip {number}", encoding="utf-8")
    return folder


def settings(family: str, base: Path, footage: Path, where: Path, **changes: dict) -> Config:
    sections: dict[str, dict] = {
        "model": {"family": family, "text_length": 512},
        "video": {"target_frames": [9]},
        "compile": {"compile": False, "shape_mode": "static"},
        "training": {"max_train_steps": 4},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return config(base, footage, where, **sections)


def prompt_of(picture: Path | None = None) -> dict:
    prompt = {"prompt": "a grey clip", "width": 64, "height": 64, "steps": 2, "seed": 3, "frames": 5}
    return prompt if picture is None else prompt | {"control_image": str(picture)}


@pytest.mark.slow
def test_wan_i2v_trains_on_clips_makes_the_planned_graphs_and_samples(
    tiny_wan_i2v: Path, footage: Path, tmp_path: Path
) -> None:
    """With the losses of a run of swapped and checkpointed blocks, which is resumed from the first half."""
    prompts = [prompt_of(footage / "picture_0.png")]
    # few layers, since each is traced: one that reads the picture's tokens is among them
    few = {"network": {"targets_include": [r".*attn\d\.to_k", "attn2.add_k_proj", "ffn.net.2"]}}
    run, code = train_here(
        settings(
            "wan_i2v", tiny_wan_i2v, footage, tmp_path,
            compile={"compile": True, "compile_backend": "eager"},
            sampling={"prompts": prompts, "sample_at_start": True},
            saving={"save_layout": "diffusers", "save_every_n_steps": 2}, **few,
        )
    )  # fmt: skip
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [each["file"].endswith(".mp4") for each in events(run, "sample")] == [True, True]
    pipeline = WanImageToVideoPipeline.from_pretrained(tiny_wan_i2v, local_files_only=True)
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    assert len(pipeline.get_active_adapters()) == 1
    again = partial(settings, "wan_i2v", tiny_wan_i2v, footage, tmp_path, **few)
    losses = losses_of_a_swapped_and_resumed_run(run, again)
    assert losses == pytest.approx([row["loss"] for row in rows(run)][2:], rel=1e-4) and len(losses) == 2


def test_a_sample_of_wan_i2v_is_the_pipelines_clip(tiny_wan_i2v: Path) -> None:
    pipeline = WanImageToVideoPipeline.from_pretrained(tiny_wan_i2v, local_files_only=True)
    is_the_pipelines_clip("wan_i2v", tiny_wan_i2v, pipeline, (48, 32))


def test_a_sample_of_wan22_5b_i2v_is_the_pipelines_clip(tiny_wan22_5b: Path) -> None:
    parts = WanPipeline.from_pretrained(tiny_wan22_5b, local_files_only=True).components
    pipeline = WanImageToVideoPipeline(**parts, image_encoder=None, image_processor=None, expand_timesteps=True)
    is_the_pipelines_clip("wan22_5b_i2v", tiny_wan22_5b, pipeline, (64, 32))


def is_the_pipelines_clip(
    name: str, base: Path, pipeline: WanImageToVideoPipeline, size: tuple[int, int], frames: int = 9
) -> None:
    """A sample of the family called `name` from a picture of `size` px equals what the pipeline draws."""
    family, loading, (width, height) = load_family(name), LoadOptions(torch.float32, CPU), size
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline.set_progress_bar_config(disable=True)
    levels = torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(2))
    picture = Image.fromarray(levels.permute(1, 2, 0).numpy().astype(np.uint8), "RGB")
    changes = {"width": width, "height": height, "negative_prompt": "blue", "true_cfg_scale": 3.0}
    prompt = SamplePrompt(**prompt_of() | changes)
    theirs = pipeline(
        picture,
        prompt.prompt,
        negative_prompt="blue",
        guidance_scale=3.0,
        width=width,
        height=height,
        num_frames=frames,
        num_inference_steps=2,
        generator=torch.Generator("cpu").manual_seed(3),
        output_type="np",
    ).frames[0]
    vae = family.load_vae(base, loading)
    start = vae.encode_start(levels / 127.5 - 1, frames)
    text = [row | start for row in family.load_text(base, loading).encode([prompt.prompt, "blue"], 512)]
    shapes = ShapeRuntime("off")
    latent = draw_latent(
        prompt,
        PromptText(*text),
        lambda x, sigma, conditioning, guidance: family.predict(
            pipeline.transformer, x, sigma, conditioning, guidance, shapes
        ),
        lambda steps, tokens: EulerSteps(pipeline.scheduler.sigmas.tolist()),
        family.facts.geometry(base),
        CPU,
        frames=frames,
    )
    ours = np.stack([*frames_of(vae.decode(latent[None])[0])]).astype(int)
    assert ours.shape == (frames, height, width, 3) == theirs.shape
    assert np.abs(ours - (theirs * 255).round().astype(int)).max() <= 1


def losses_of_a_swapped_and_resumed_run(straight: Run, settings_of: Callable[..., Config]) -> list[float]:
    """Of the second two of four steps with swapped and checkpointed blocks, resumed from the state after the first."""
    training = {"max_train_steps": 4, "gradient_checkpointing": True}
    run = resumed_from(straight, 2, settings_of(training=training, memory={"blocks_to_swap": 3}))
    return [row["loss"] for row in rows(run)]


def test_wan22_5b_trains_on_clips_resumes_and_samples(tiny_wan22_5b: Path, footage: Path, tmp_path: Path) -> None:
    cfg = settings(
        "wan22_5b", tiny_wan22_5b, footage, tmp_path, sampling={"prompts": [prompt_of()]},
        saving={"save_every_n_steps": 2},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert events(run, "sample")[0]["file"].endswith(".mp4")
    pipeline = WanPipeline.from_pretrained(tiny_wan22_5b, local_files_only=True)
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    assert_diffusers_holds(pipeline.transformer, lora_of(run))
    assert_comfyui_takes(lora_of(run))
    losses = losses_of_a_swapped_and_resumed_run(run, partial(settings, "wan22_5b", tiny_wan22_5b, footage, tmp_path))
    assert losses == pytest.approx([row["loss"] for row in rows(run)][2:], rel=1e-4) and len(losses) == 2


def test_wan22_5b_i2v_trains_on_clips_and_pictures_and_samples_from_a_picture(
    tiny_wan22_5b: Path, footage: Path, tmp_path: Path
) -> None:
    """Compiled, as many graphs as planned; the loss of the known first frame is none, and the sample starts from it."""
    run, code = train_here(
        settings(
            "wan22_5b_i2v", tiny_wan22_5b, footage, tmp_path,
            compile={"compile": True, "compile_backend": "eager"}, network={"targets_include": [r".*attn\d\.to_k"]},
            sampling={"prompts": [prompt_of(footage / "picture_0.png")], "sample_at_start": True},
        )
    )  # fmt: skip
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [each["file"].endswith(".mp4") for each in events(run, "sample")] == [True, True]
