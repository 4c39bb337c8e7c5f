"""Samples of Wan: the clip that diffusers' own pipeline makes, and what a run writes of it."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanImageToVideoPipeline, WanPipeline
from PIL import Image

from backend.config.rules.check import check
from backend.config.schema import SamplePrompt, with_values
from backend.families.wan.facts import FACTS
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives.flow_matching import EulerSteps
from backend.preview.__main__ import main as preview
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.sample_clips import frames_of, read_comment
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
        lambda x, sigma, conditioning, guidance: code.predict(
            pipeline.transformer, x, sigma, conditioning, guidance, shapes
        ),
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


class GivenSigmas(FlowMatchEulerDiscreteScheduler):
    """Steps at the noise levels that the run's own sampler has."""

    given: tuple[float, ...] = ()

    def set_timesteps(self, *_: object, **__: object) -> None:
        """Ignore how many steps are asked for."""
        super().set_timesteps(sigmas=[*self.given], device="cpu")


def test_a_sample_from_a_picture_is_the_pipelines_clip(tiny_wan_i2v: Path, image_folder: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.png"
    Image.open(image_folder / "picture_0.png").convert("RGB").resize((48, 32)).save(start)
    prompt = CLIP | {"frames": 9, "control_image": str(start)}
    cfg = config(
        tiny_wan_i2v,
        image_folder,
        tmp_path,
        model={"family": "wan_i2v", "text_length": None},
        training={"max_train_steps": 1, "mixed_precision": "no"},
        sampling={"prompts": [prompt], "sample_at_start": True},
    )
    run, exit_code = train_here(cfg)
    assert exit_code == 0, events(run)[-3:]
    before = next(sample for sample in run.samples() if sample.step == 0)

    pipeline = WanImageToVideoPipeline.from_pretrained(tiny_wan_i2v)
    pipeline.scheduler = GivenSigmas(shift=1.0)
    pipeline.scheduler.given = tuple(load_family("wan_i2v").sampling_sigmas(2, 18, tiny_wan_i2v)[:-1])
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        Image.open(start),
        "a red ball rolls",
        guidance_scale=1.0,
        width=48,
        height=32,
        num_frames=9,
        num_inference_steps=2,
        generator=torch.Generator("cpu").manual_seed(3),
        output_type="np",
    ).frames[0]
    assert before.sheet is not None
    sheet = np.asarray(Image.open(before.sheet)).astype(int)
    ours = sheet.reshape(3, 32, 3, 48, 3).transpose(0, 2, 1, 3, 4).reshape(9, 32, 48, 3)
    assert np.abs(ours - (theirs * 255).round().astype(int)).max() <= 2

    # a preview of the run draws the clip that the run drew at its end
    after, out = next(sample for sample in run.samples() if sample.step == 1), tmp_path / "out"
    arguments = ["--run", str(run.path), "--shape_mode", "off", "--out", str(out)]
    assert preview(arguments) == 0 and {path.name for path in out.iterdir()} == {"01-01.mp4", "01-01.sheet.png"}
    with Image.open(after.sheet or "") as mine, Image.open(out / "01-01.sheet.png") as drawn:
        assert drawn.tobytes() == mine.tobytes() != Image.open(before.sheet).tobytes()
        assert drawn.text["parameters"] == mine.text["parameters"]
    made = json.loads(read_comment(out / "01-01.mp4"))
    assert (made["run"], made["step"], made["fps"], made["base"]) == (run.name, 1, 16.0, tiny_wan_i2v.name)
    assert made["control_image"] == "start.png" and str(tmp_path) not in json.dumps(made)

    asked = with_values(cfg, {"sampling.prompts": [CLIP]})
    assert [problem.path for problem in check(asked, "start")] == ["sampling.prompts[0].control_image"]
