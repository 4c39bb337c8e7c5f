"""FLUX's encoders, VAE and samples against diffusers' own ``FluxPipeline``, and what is said about broken parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from diffusers import FluxPipeline
from PIL import Image

from backend.base.errors import Refused
from backend.config.schema import SamplePrompt
from backend.families.files.base_model import BaseModelFiles
from backend.families.flux import facts
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives.flow_matching import EulerSteps
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.sampling import Interrupted, PromptText, draw_latent, to_picture, write_picture

code = load_family("flux")

CPU = torch.device("cpu")
CAPTIONS = ["a red circle", "", "a photo of the small white cat and a star " * 12]


def test_captions_are_encoded_as_the_pipeline_does(tiny_flux: Path) -> None:
    stack = code.load_text(tiny_flux, LoadOptions(torch.float32, CPU))
    ours = stack.encode(CAPTIONS, 64)
    theirs, pooled, _ = FluxPipeline.from_pretrained(tiny_flux).encode_prompt(CAPTIONS, max_sequence_length=64)
    for index in range(len(CAPTIONS)):
        assert torch.allclose(ours[index]["prompt_embeds"], theirs[index], atol=5e-6)
        assert torch.allclose(ours[index]["pooled"], pooled[index], atol=1e-6)
    assert ours[0]["prompt_embeds"].shape[0] == 64
    assert [int(encoding["length"]) for encoding in ours] == [
        len(stack.t5_tokenizer(c).input_ids) for c in CAPTIONS[:2]
    ] + [64]


def test_latents_are_the_mode_shifted_and_scaled_and_decode_undoes_it(tiny_flux: Path) -> None:
    stack = code.load_vae(tiny_flux, LoadOptions(torch.float32, CPU))
    pixels = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    latents = stack.encode(pixels)
    vae = FluxPipeline.from_pretrained(tiny_flux).vae
    with torch.no_grad():
        mode = vae.encode(pixels).latent_dist.mode()
        decoded = vae.decode(mode).sample
    assert torch.allclose(latents, (mode - vae.config.shift_factor) * vae.config.scaling_factor, atol=1e-6)
    assert torch.allclose(stack.decode(latents), decoded, atol=1e-5)
    alone = BaseModelFiles(None, {"vae": tiny_flux / "vae"})
    assert torch.equal(code.load_vae(alone, LoadOptions(torch.float32, CPU)).encode(pixels), latents)


@pytest.mark.parametrize("true_cfg", [1.0, 2.5])
def test_a_sample_is_the_pipelines_picture(tiny_flux: Path, tmp_path: Path, true_cfg: float) -> None:
    pipeline = FluxPipeline.from_pretrained(tiny_flux)
    pipeline.set_progress_bar_config(disable=True)
    prompt = SamplePrompt(
        prompt="a red circle", negative_prompt="blue", width=100, height=64, seed=3, steps=3, guidance_scale=2.0,
        true_cfg_scale=true_cfg,
    )  # fmt: skip
    theirs = pipeline(
        prompt.prompt,
        negative_prompt=prompt.negative_prompt,
        true_cfg_scale=true_cfg,
        width=96,
        height=64,
        num_inference_steps=3,
        guidance_scale=2.0,
        max_sequence_length=32,
        generator=torch.Generator("cpu").manual_seed(3),
    ).images[0]
    text, negative = code.load_text(tiny_flux, LoadOptions(torch.float32, CPU)).encode(["a red circle", "blue"], 32)
    shapes = ShapeRuntime("off")
    geometry = facts.FACTS.geometry(tiny_flux)
    latent = draw_latent(
        prompt,
        PromptText(text, negative if true_cfg > 1 else None),
        lambda x, sigma, conditioning, guidance: code.predict(
            pipeline.transformer, x, sigma, conditioning, guidance, shapes
        ),
        lambda steps, tokens: EulerSteps(code.sampling_sigmas(steps, tokens, tiny_flux)),
        geometry,
        CPU,
    )
    ours = to_picture(code.load_vae(tiny_flux, LoadOptions(torch.float32, CPU)).decode(latent[None])[0])
    assert np.abs(np.asarray(ours).astype(int) - np.asarray(theirs).astype(int)).max() <= 1
    write_picture(tmp_path / "s.png", ours, prompt, {"step": 7})
    opened = Image.open(tmp_path / "s.png")
    assert opened.size == (96, 64)
    assert opened.text["parameters"].startswith("a red circle\nNegative prompt: blue\nSteps: 3")
    assert json.loads(opened.text["monotile"])["step"] == 7 and "Size: 96x64" in opened.text["parameters"]


def test_drawing_can_be_interrupted_between_steps(tiny_flux: Path) -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        draw_latent(
            SamplePrompt(prompt="x", width=32, height=32, steps=9),
            PromptText({}, None),
            lambda x, *_: [torch.zeros_like(x[0])],
            lambda steps, tokens: EulerSteps([1 - i / steps for i in range(steps + 1)]),
            facts.FACTS.geometry(tiny_flux),
            CPU,
            check,
        )
    assert len(calls) == 3


@pytest.fixture
def copied(tiny_flux: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_flux, tmp_path / "base"))


def test_variant_files_are_read_and_parts_without_them_fall_back(copied: Path) -> None:
    weights = copied / "transformer" / "diffusion_pytorch_model.safetensors"
    halved = {name: value.half() for name, value in safetensors.torch.load_file(weights).items()}
    safetensors.torch.save_file(halved, weights.with_name("diffusion_pytorch_model.fp16.safetensors"), {"format": "pt"})
    weights.unlink()
    loaded = code.load_denoiser(copied, LoadOptions(torch.float32, CPU, "fp16"))
    assert loaded.x_embedder.weight.dtype == torch.float32
    assert torch.equal(loaded.x_embedder.weight, halved["x_embedder.weight"].float())
    code.load_vae(copied, LoadOptions(torch.float32, CPU, "fp16"))
    with pytest.raises(Refused, match="transformer"):
        code.load_denoiser(copied, LoadOptions(torch.float32, CPU))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("text_encoder_2/model.safetensors", "T5"),
        ("text_encoder/config.json", "CLIP"),
        ("tokenizer_2", "T5 tokenizer"),
        ("tokenizer", "CLIP tokenizer"),
    ],
)
def test_a_missing_text_part_is_named(copied: Path, broken: str, words: str) -> None:
    path = copied / broken
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(Refused) as refused:
        code.load_text(copied, LoadOptions(torch.float32, CPU))
    assert words in refused.value.text and refused.value.remedy


def test_a_missing_or_cut_vae_and_transformer_are_named(copied: Path) -> None:
    weights = copied / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(Refused, match="cut short"):
        code.load_vae(copied, LoadOptions(torch.float32, CPU))
    shutil.rmtree(copied / "transformer")
    with pytest.raises(Refused, match="the FLUX transformer is missing"):
        code.load_denoiser(copied, LoadOptions(torch.float32, CPU))
    with pytest.raises(Refused, match="config.json"):
        code.empty_denoiser(copied)
