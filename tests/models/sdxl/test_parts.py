"""SDXL and Stable Diffusion 1.5 against diffusers' own pipelines: text, forward, samples, files."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline

from backend.config.schema import Config, SamplePrompt
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import Geometry
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives.choose import objective_of
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.sampling import PromptText, draw_latent, to_picture

CPU = torch.device("cpu")
LOADING = LoadOptions(torch.float32, CPU)
LONG = "a red circle and a blue square on the white house, " * 12


@functools.cache
def pipeline_of(name: str, folder: Path):
    """diffusers' own, which takes a second to load; no test changes more of it than its scheduler."""
    cls = StableDiffusionXLPipeline if name == "sdxl" else StableDiffusionPipeline
    more = {} if name == "sdxl" else {"safety_checker": None}
    pipeline = cls.from_pretrained(folder, **more)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(params=["sdxl", "sd15"])
def model(request: pytest.FixtureRequest) -> tuple[str, Path]:
    return request.param, request.getfixturevalue(f"tiny_{request.param}")


def test_the_fixture_is_a_whole_model_and_its_geometry_is_read(model: tuple[str, Path]) -> None:
    name, folder = model
    assert family(name).check_base_model(folder) == []
    cell = 4 if name == "sdxl" else 8
    assert family(name).geometry(folder) == Geometry(8, cell, 4) == family(name).default_geometry
    assert set(family(name).sizes(folder)) >= {"unet", "vae", "text_encoder"}
    code = load_family(name)
    assert sum(p.numel() for p in code.empty_denoiser(folder).parameters()) > 0


def test_mixed_parts_are_named(tiny_sdxl: Path, tiny_sd15: Path, tmp_path: Path) -> None:
    (problem,) = family("sd15").check_base_model(tiny_sdxl)[:1]
    assert "StableDiffusionXLPipeline" in problem.text
    mixed = shutil.copytree(tiny_sdxl, tmp_path / "mixed")
    config = json.loads((mixed / "unet" / "config.json").read_text())
    (mixed / "unet" / "config.json").write_text(json.dumps({**config, "cross_attention_dim": 768}))
    assert any("width of both text encoders" in p.text for p in family("sdxl").check_base_model(mixed))


@pytest.mark.parametrize("caption", ["a red circle", "", LONG])
def test_text_is_what_the_pipeline_encodes(model: tuple[str, Path], caption: str) -> None:
    name, folder = model
    pipeline = pipeline_of(name, folder)
    (ours,) = load_family(name).load_text(folder, LOADING).encode([caption], 77)
    theirs = pipeline.encode_prompt(caption, device=CPU, num_images_per_prompt=1, do_classifier_free_guidance=False)
    assert ours["prompt_embeds"].shape[0] == 77
    torch.testing.assert_close(ours["prompt_embeds"], theirs[0][0])
    if name == "sdxl":
        torch.testing.assert_close(ours["pooled"], theirs[2][0])


@pytest.mark.parametrize("caption", ["a red circle", LONG])
def test_longer_text_is_read_in_chunks_and_told_as_one(model: tuple[str, Path], caption: str) -> None:
    name, folder = model
    pipeline, stack = pipeline_of(name, folder), load_family(name).load_text(folder, LOADING)
    (ours,), (short,) = stack.encode([caption, "x"], 227)[:1], stack.encode([caption], 77)
    encoders = [(pipeline.text_encoder, pipeline.tokenizer)]
    encoders += [(pipeline.text_encoder_2, pipeline.tokenizer_2)] if name == "sdxl" else []
    states = []
    for clip, tokenizer in encoders:
        inside = tokenizer(caption, truncation=False).input_ids[1:-1][:225]
        seen = []
        for at in (0, 75, 150):
            ids = [tokenizer.bos_token_id, *inside[at : at + 75], tokenizer.eos_token_id]
            ids += [tokenizer.pad_token_id] * (77 - len(ids))
            out = clip(torch.tensor([ids]), output_hidden_states=True)
            seen.append((out.hidden_states[-2] if name == "sdxl" else out[0])[0])
        states.append(torch.cat([seen[0][:1], *(chunk[1:76] for chunk in seen), seen[2][76:]]))
    assert ours["prompt_embeds"].shape[0] == 227
    torch.testing.assert_close(ours["prompt_embeds"], torch.cat(states, dim=-1))
    torch.testing.assert_close(ours["prompt_embeds"][:76], short["prompt_embeds"][:76])
    if name == "sdxl":
        torch.testing.assert_close(ours["pooled"], short["pooled"])


def test_predict_is_the_pipelines_denoiser_call(model: tuple[str, Path]) -> None:
    name, folder = model
    code, pipeline = load_family(name), pipeline_of(name, folder)
    source = torch.Generator().manual_seed(0)
    latents = torch.randn(2, 4, 16, 24, generator=source)
    text = code.load_text(folder, LOADING).encode(["a red circle", "a dog"], 77)
    timestep = torch.tensor([37.0, 801.0])
    added = None
    if name == "sdxl":
        for row, (crop, original) in zip(text, (((8, 3), (333, 501)), ((0, 0), (192, 128))), strict=True):
            row |= code.conditions(original, crop, (192, 128))
        ids = torch.stack([
            pipeline._get_add_time_ids((501, 333), (3, 8), (128, 192), torch.float32, 24)[0],
            pipeline._get_add_time_ids((128, 192), (0, 0), (128, 192), torch.float32, 24)[0],
        ])  # fmt: skip
        assert torch.equal(torch.stack([row["time_ids"] for row in text]), ids)
        added = {"text_embeds": torch.stack([row["pooled"] for row in text]), "time_ids": ids}
    words = torch.stack([row["prompt_embeds"] for row in text])
    with torch.no_grad():
        wanted = pipeline.unet(latents, timestep, encoder_hidden_states=words, added_cond_kwargs=added).sample
        denoiser = code.load_denoiser(folder, LOADING)
        output = code.predict(denoiser, list(latents), timestep, text, None, ShapeRuntime("off"))
    torch.testing.assert_close(torch.stack(output), wanted, atol=2e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="one size"):
        code.predict(denoiser, [latents[0], latents[1, :, :8]], timestep, text, None, ShapeRuntime("off"))


def test_timesteps_and_sizes_stay_float32_in_a_bf16_model(tiny_sdxl: Path) -> None:
    """In bf16, timestep 751 and 752 are one number, and 1501 px are 1504."""
    code, seen = load_family("sdxl"), []
    denoiser = code.load_denoiser(tiny_sdxl, LoadOptions(torch.bfloat16, CPU))
    for each in (denoiser.time_proj, denoiser.add_time_proj):
        each.register_forward_hook(lambda _, inputs, out: seen.append(inputs[0].flatten().tolist()))
    (text,) = code.load_text(tiny_sdxl, LOADING).encode(["a dog"], 77)
    text |= code.conditions((1501, 751), (3, 0), (128, 128))
    code.predict(denoiser, [torch.zeros(4, 16, 16)], torch.tensor([751.0]), [text], None, ShapeRuntime("off"))
    assert seen == [[751.0], [751.0, 1501.0, 0.0, 3.0, 128.0, 128.0]]


@pytest.mark.parametrize("cfg_scale", [1.0, 5.0])
def test_a_sample_is_the_pipelines_picture(model: tuple[str, Path], cfg_scale: float) -> None:
    name, folder = model
    code, pipeline = load_family(name), pipeline_of(name, folder)
    pipeline.scheduler = EulerDiscreteScheduler.from_config(
        json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    )
    theirs = pipeline(
        "a red circle", negative_prompt="blue", width=192, height=128, num_inference_steps=4, guidance_scale=cfg_scale,
        generator=torch.Generator("cpu").manual_seed(3),
    ).images[0]  # fmt: skip
    prompt = SamplePrompt(prompt="a red circle", width=192, height=128, steps=4, seed=3, true_cfg_scale=cfg_scale)
    text, negative = code.load_text(folder, LOADING).encode(["a red circle", "blue"], 77)
    if name == "sdxl":
        size_ids = code.conditions((192, 128), (0, 0), (192, 128))
        text, negative = text | size_ids, negative | size_ids
    cfg = Config.model_validate({"model": {"family": name}})
    objective = objective_of(cfg, family(name), code, BaseModelFiles.at(folder))
    denoiser, shapes = code.load_denoiser(folder, LOADING), ShapeRuntime("off")
    latent = draw_latent(
        prompt,
        PromptText(text, negative if cfg_scale > 1 else None),
        lambda x, level, conditioning, guidance: code.predict(denoiser, x, level, conditioning, guidance, shapes),
        objective.sampler,
        family(name).geometry(folder),
        CPU,
    )
    ours = to_picture(code.load_vae(folder, LOADING).decode(latent[None])[0])
    assert np.abs(np.asarray(ours).astype(int) - np.asarray(theirs).astype(int)).max() <= 1


def test_the_latent_is_the_pipelines(model: tuple[str, Path]) -> None:
    name, folder = model
    vae = load_family(name).load_vae(folder, LOADING)
    pixels = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    theirs = pipeline_of(name, folder).vae
    with torch.no_grad():
        wanted = theirs.encode(pixels).latent_dist.mode() * theirs.config.scaling_factor
    torch.testing.assert_close(vae.encode(pixels), wanted)


@pytest.mark.parametrize("whole", [True, False])
def test_tokens_are_counted_as_the_tokenizer_counts_them(tiny_sdxl: Path, tmp_path: Path, whole: bool) -> None:
    """Also where an older model has no tokenizer.json, so that captions that are cut are always said."""
    from transformers import CLIPTokenizer

    from backend.plan.texts import token_counter

    folder = shutil.copytree(tiny_sdxl, tmp_path / "model")
    tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer_2")
    if whole:
        tokenizer.save_pretrained(folder / "tokenizer_2")
    else:
        for part in ("tokenizer", "tokenizer_2"):
            (folder / part / "tokenizer.json").unlink(missing_ok=True)
    count = token_counter(folder, family("sdxl"))
    assert count is not None
    for text in ("", "a red circle", "It's  12 DOGS, and caf\u00e9!", LONG):
        assert count(text) == len(tokenizer(text).input_ids), text
