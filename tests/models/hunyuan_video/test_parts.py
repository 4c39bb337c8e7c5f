"""HunyuanVideo's text, VAE and noise levels: against diffusers' own pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoPipeline

from backend.families.hunyuan_video.facts import FACTS, TEMPLATE
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.plan.texts import token_counter
from tests.tiny.kept import Live

ROW, CPU = family("hunyuan_video"), LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family(ROW.name)
CAPTIONS = ["a red circle", "", "a {brace}", "the small cat in a white house, and the large black dog on a tree" * 6]


def test_captions_are_what_the_pipeline_tells_its_denoiser(tiny_hunyuan_video: Path) -> None:
    pipeline = HunyuanVideoPipeline.from_pretrained(tiny_hunyuan_video)
    stack, counted = CODE.load_text(tiny_hunyuan_video, CPU), token_counter(tiny_hunyuan_video, FACTS)
    assert counted is not None
    template = {"template": TEMPLATE, "crop_start": 95}
    for length in (256, 24):
        for caption, encoding in zip(CAPTIONS, stack.encode(CAPTIONS, length), strict=True):
            with torch.no_grad():
                # its own template, where braces are no place for a caption
                own = {} if "{" not in caption else {"prompt_template": template}
                wanted, pooled, mask = pipeline.encode_prompt(caption, max_sequence_length=length, **own)
            real = int(mask.sum())
            assert encoding["prompt_embeds"].shape[0] == real == min(length, counted(caption))
            torch.testing.assert_close(encoding["prompt_embeds"], wanted[0, :real], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(encoding["pooled"], pooled[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("frames", [1, 5, 33])
def test_latents_are_the_pipelines_and_come_back(tiny_hunyuan_video: Path, frames: int) -> None:
    vae = HunyuanVideoPipeline.from_pretrained(tiny_hunyuan_video).vae
    stack = CODE.load_vae(tiny_hunyuan_video, CPU)
    pixels = torch.rand(2, 3, frames, 32, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1
    latents = stack.encode(pixels)
    geometry = ROW.geometry(tiny_hunyuan_video)
    assert latents.shape == (2, *geometry.latent_shape(48, 32, frames)) == (2, 4, (frames - 1) // 4 + 1, 4, 6)
    with torch.no_grad():
        raw = vae.encode(pixels).latent_dist.mode()
        torch.testing.assert_close(latents, raw * 0.476986)
        decoded = stack.decode(latents)
        # of long clips, whose sums some processors order otherwise, by up to 1.2e-5
        torch.testing.assert_close(decoded, vae.decode(raw, return_dict=False)[0], rtol=1.3e-6, atol=5e-5)
    assert decoded.shape == pixels.shape
    row = stack.encode_row(pixels[0])
    assert row.keys() == {"latent"} and torch.equal(row["latent"], stack.encode(pixels[:1])[0])
    if frames == 1:
        # a picture is a clip of one frame
        assert torch.equal(stack.encode(pixels[:, :, 0]), latents)


def test_the_memory_of_encoding_does_not_grow_with_the_clip(tiny_hunyuan_video: Path) -> None:
    stack, peaks = CODE.load_vae(tiny_hunyuan_video, CPU), []
    for frames in (29, 77):
        pixels, live = torch.zeros(1, 3, frames, 32, 32), Live()
        live.leave_out([pixels, *stack.vae.parameters()])
        with live:
            stack.encode(pixels)
        peaks.append(live.peak)
    assert peaks[1] < 1.02 * peaks[0]


@pytest.mark.parametrize("steps", [1, 4, 30])
def test_noise_levels_are_the_pipelines(tiny_hunyuan_video: Path, steps: int) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(tiny_hunyuan_video / "scheduler")
    # as `HunyuanVideoPipeline.__call__` asks for them
    scheduler.set_timesteps(sigmas=torch.linspace(1.0, 0.0, steps + 1)[:-1].tolist())
    assert CODE.sampling_sigmas(steps, 1024, tiny_hunyuan_video) == pytest.approx(scheduler.sigmas.tolist(), abs=1e-6)


def test_a_lora_says_what_it_is_for(tiny_hunyuan_video: Path) -> None:
    assert ROW.lora_architecture(tiny_hunyuan_video) == "hunyuan-video/lora"
    assert (ROW.video.rate, ROW.geometry(tiny_hunyuan_video).whole_frames(131)) == (24.0, 129)  # type: ignore[union-attr]
