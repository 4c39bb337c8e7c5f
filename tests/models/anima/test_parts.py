"""Anima's text, VAE, noise levels, files and LoRA files: against diffusers' own pipeline, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers.modular_pipelines.anima.before_denoise import AnimaTextConditioningStep
from diffusers.modular_pipelines.anima.encoders import AnimaTextEncoderStep, encode_vae_image

from backend.families.anima.facts import FACTS
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.plan.texts import token_counter
from tests.tiny.anima_pipeline import pipeline_of

ROW, CPU = family("anima"), LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family(ROW.name)
CAPTIONS = ["a red circle", "", "the small cat in a white house, and the large black dog on a tree"]


def test_captions_are_what_the_pipeline_tells_its_denoiser(tiny_anima: Path) -> None:
    pipeline, stack = pipeline_of(tiny_anima), CODE.load_text(tiny_anima, CPU)
    counted = token_counter(tiny_anima, FACTS)
    for length in (512, 7):
        for caption, encoding in zip(CAPTIONS, stack.encode(CAPTIONS, length), strict=True):
            theirs = AnimaTextEncoderStep.encode_prompt(
                pipeline, caption, prepare_unconditional_embeds=False, max_sequence_length=length, device="cpu"
            )
            wanted = AnimaTextConditioningStep._condition_prompt_embeds(
                pipeline, **{name: value for name, value in theirs.items() if not name.startswith("negative")},
                device=torch.device("cpu"), conditioning_dtype=torch.float32, output_dtype=torch.float32,
            )[0]  # fmt: skip
            real = encoding["prompt_embeds"].shape[0]
            assert real == min(length, counted(caption)) and wanted.shape[0] == 512
            assert torch.isfinite(encoding["prompt_embeds"]).all()
            torch.testing.assert_close(encoding["prompt_embeds"], wanted[:real], atol=1e-6, rtol=1e-5)
            assert not wanted[real:].any(), "what is not kept is zero"


def test_latents_are_the_pipelines_and_come_back(tiny_anima: Path) -> None:
    pipeline, stack = pipeline_of(tiny_anima), CODE.load_vae(tiny_anima, CPU)
    pixels = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        wanted = encode_vae_image(pixels, pipeline.vae, None, "cpu", torch.float32, 4)
    latents = stack.encode(pixels)
    assert latents.shape == (2, 4, 8, 12)
    torch.testing.assert_close(latents, wanted[:, :, 0])
    assert stack.decode(latents).shape == pixels.shape
    geometry = ROW.geometry(tiny_anima)
    assert (geometry.downscale, geometry.patch, geometry.latent_channels) == (8, 2, 4)


def test_noise_levels_are_the_pipelines(tiny_anima: Path) -> None:
    levels = CODE.sampling_sigmas(5, 999, tiny_anima)
    # shift 3: 3 s / (1 + 2 s) of 1, 4/5, ...
    assert levels == pytest.approx([3 * s / (1 + 2 * s) for s in (1, 0.8, 0.6, 0.4, 0.2)] + [0.0])


def test_what_does_not_belong_is_named(tiny_anima: Path, tiny_flux: Path, tmp_path: Path) -> None:
    assert ROW.check_base_model(tiny_anima) == [] and set(ROW.sizes(tiny_anima)) == {
        "transformer", "text_conditioner", "vae", "text_encoder",
    }  # fmt: skip
    assert "AnimaModularPipeline" in family("flux").check_base_model(tiny_anima)[0].text
    base = Path(shutil.copytree(tiny_anima, tmp_path / "base"))
    config = base / "transformer" / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"text_embed_dim": 8, "extra_pos_embed_type": "learnable"})
    )
    shutil.rmtree(base / "t5_tokenizer")
    message = " ".join(problem.sentence() for problem in ROW.check_base_model(base))
    assert "text width is 8" in message and "extra_pos_embed_type" in message and "T5 tokenizer" in message
