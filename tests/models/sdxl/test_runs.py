"""Whole runs of UNet families: train, sample, validate, save, reload elsewhere, stop and resume."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from backend.config.layer_patterns import included, sizes
from backend.config.sections.network import NetworkSection
from backend.families.table import family
from backend.lora.comfyui_keys import linear_layers, names_of, not_loadable, split_key
from backend.lora.inject import find_targets, inject, is_large
from backend.lora.load import read_lora
from backend.lora.save import file_tensors, write_lora
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from tests.conftest import draw_pictures
from tests.tiny.sdxl_runs import PROMPT, comfy_map, pipeline_of, settings
from tests.tiny.training import events, lora_of, rows, same, straight_run_that_a_resumed_one_repeats, train_here

PICTURES = ((128, 128), (192, 128), (128, 192), (160, 128), (256, 128), (128, 256), (192, 192), (200, 150))


@pytest.fixture(scope="session")
def pictures(once) -> Path:
    return once("unet_pictures", lambda folder: draw_pictures(folder, PICTURES))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_a_run_makes_the_planned_graphs_and_loads_in_diffusers(
    name: str, request: pytest.FixtureRequest, pictures: Path, tmp_path: Path
) -> None:
    base = request.getfixturevalue(f"tiny_{name}")
    cfg = settings(
        name, base, pictures, tmp_path,
        compile={"compile": name == "sdxl", "compile_backend": "eager", "shape_mode": "exact_buckets"},
        sampling={"prompts": [PROMPT, {**PROMPT, "lora_scale": 0.0}], "sample_at_start": True},
        validation={"validate_at_start": True},
        loss={"min_snr_gamma": 5.0, "noise_offset": 0.05},
        # few where each is traced; the projections are outside of the blocks
        network={"targets_include": ["attn2.to_k", "attn1.to_v", "proj_in", "proj_out"]} if name == "sdxl" else {},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and (planned > 0) == (name == "sdxl")
    assert [event["step"] for event in events(run, "validation")] == [0, 4]
    samples = {(s.step, s.prompt_index): Image.open(s.path) for s in run.samples()}
    assert samples[4, 1].tobytes() == samples[0, 1].tobytes() == samples[0, 0].tobytes()

    tensors = lora_of(run)
    assert not [event for event in events(run, "warning") if "ComfyUI" in event["text"]]
    assert len(tensors) > 3 * 10 and all(key.startswith("lora_unet_") for key in tensors)
    assert {key.partition(".")[2] for key in tensors} == {"lora_down.weight", "lora_up.weight", "alpha"}
    # proj_in and proj_out are convolutions in SD 1.5, as its other programs have them
    projections = [value for key, value in tensors.items() if "proj_in.lora" in key or "proj_out.lora" in key]
    assert projections and all(value.shape[2:] == ((1, 1) if name == "sd15" else ()) for value in projections)
    with safetensors.safe_open(run.checkpoints_dir / "tiny.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["modelspec.architecture"] == {
        "sdxl": "stable-diffusion-xl-v1-base/lora", "sd15": "stable-diffusion-v1/lora",
    }[name]  # fmt: skip
    # diffusers draws the same picture from base and file: strength, names and sampler
    pipeline = pipeline_of(name, base)

    def draw() -> np.ndarray:
        drawn = pipeline(
            "a red circle", negative_prompt="", width=128, height=128, num_inference_steps=3, guidance_scale=4.0,
            generator=torch.Generator("cpu").manual_seed(5),
        )  # fmt: skip
        return np.asarray(drawn.images[0]).astype(int)

    without = draw()
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    ours = np.asarray(samples[4, 0]).astype(int)
    assert np.abs(ours - draw()).max() <= 1
    assert np.abs(ours - without).max() > 3


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_a_resumed_run_is_the_straight_one_and_swap_and_compile_change_nothing(
    name: str, request: pytest.FixtureRequest, pictures: Path, tmp_path: Path
) -> None:
    base = request.getfixturevalue(f"tiny_{name}")
    own = {"targets_include": ["attn2.to_k", "attn1.to_v"], "targets_exclude": [r"up_blocks.*resnets.*"]}
    few = {"network": {"network_dim": 4, "network_alpha": 2.0, "conv_dim": 2, **own}}
    few["validation"] = {"validate_at_end": False}
    straight = straight_run_that_a_resumed_one_repeats(
        partial(settings, name, base, pictures, tmp_path, **few), steps=2
    )
    if name == "sd15":
        return
    compiled = {"compile": True, "compile_backend": "eager", "shape_mode": "off"}
    two = {"training": {"max_train_steps": 2}}
    traced, code = train_here(settings(name, base, pictures, tmp_path, compile=compiled, **two, **few))
    assert code == 0, events(traced, "error")
    assert [row["loss"] for row in rows(traced)] == pytest.approx([row["loss"] for row in rows(straight)], rel=1e-5)


def test_static_is_refused_with_the_reason(tiny_sdxl: Path, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="convolutions"):
        settings("sdxl", tiny_sdxl, pictures, tmp_path, compile={"shape_mode": "static"})


def latent_diffusions(stems: set[str]) -> set[str]:
    """Those that lie in a block of latent diffusion's UNet."""
    return {stem for stem in stems if re.match(r"lora_unet_(input_blocks|middle_block|output_blocks)_\d", stem)}


@pytest.mark.parametrize("layout", ["kohya", "diffusers"])
@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_files_of_both_layouts_are_read_back_and_by_diffusers(
    request: pytest.FixtureRequest, tmp_path: Path, layout: str, name: str
) -> None:
    """Convolutions larger than one pixel too, of a rank and alpha of their own."""
    base, code, facts = request.getfixturevalue(f"tiny_{name}"), load_family(name), family(name)
    denoiser = code.load_denoiser(base, LoadOptions(torch.float32, torch.device("cpu")))
    network = NetworkSection(network_dim=4, network_alpha=2.0, conv_dim=3, conv_alpha=6.0)
    targets = find_targets(denoiser, included(network, facts))
    large = {path for path in targets if is_large(denoiser.get_submodule(path))}
    names = names_of(linear_layers(denoiser), facts)
    layer_sizes = sizes(targets, network, large)
    lora = inject(denoiser, targets, rank=4, alpha=2.0, dropout=0.0, seed=1, sizes=layer_sizes)
    assert large and not not_loadable(targets, facts.lora_layers)
    source = torch.Generator().manual_seed(1)
    for path in targets:
        lora.pair(path)[1].data.copy_(torch.randn(lora.pair(path)[1].shape, generator=source) * 0.2)
    write_lora(tmp_path / "x.safetensors", file_tensors(lora, "fp32", names, layout), {})
    back = read_lora(tmp_path / "x.safetensors", names)
    for path in targets:
        a, b = lora.pair(path)
        assert a.shape[2:] == ((3, 3) if path in large else a.shape[2:]) and b.shape[2:].numel() == 1
        assert (a.shape[0], lora.scale_of(path)) == ((3, 2.0) if path in large else (4, 0.5))
        torch.testing.assert_close(back.pairs[path][1] * back.scales[path], b.detach().flatten(1) * lora.scale_of(path))
        assert torch.equal(back.pairs[path][0], a.flatten(1))
    if layout == "kohya":
        keys = safetensors.torch.load_file(tmp_path / "x.safetensors")
        stems = {split_key(key)[0] for key in keys}
        assert stems <= (comfy_map(denoiser) if name == "sd15" else latent_diffusions(stems))
    pipeline = pipeline_of(name, base)
    pipeline.load_lora_weights(tmp_path / "x.safetensors")
    width = denoiser.config.cross_attention_dim
    latent, words = torch.randn(1, 4, 16, 16, generator=source), torch.randn(1, 77, width, generator=source)
    added = {"text_embeds": torch.randn(1, 24, generator=source), "time_ids": torch.full((1, 6), 128.0)}
    with torch.no_grad():
        calls = [
            model(latent, 500, encoder_hidden_states=words, added_cond_kwargs=added).sample
            for model in (denoiser, pipeline.unet)
        ]
    torch.testing.assert_close(calls[0], calls[1], atol=1e-6, rtol=1e-5)
    assert not same(calls[0], calls[0] * 0)
