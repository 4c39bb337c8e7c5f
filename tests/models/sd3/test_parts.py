"""SD3's text, VAE, noise levels, sizes and files: against diffusers' own pipeline, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline
from diffusers.training_utils import compute_density_for_timestep_sampling

from backend.config.load import parse
from backend.families.sd3.facts import CLIP_TOKENS, FACTS
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.objectives import flow
from backend.plan.make_plan import plan_for
from backend.plan.texts import token_counter
from tests.tiny.plan_items import scan_of

ROW, CPU = family("sd3"), LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family(ROW.name)
CAPTIONS = ["a red circle", "", "the small cat in a white house, and the large black dog on a tree" * 3]


@pytest.mark.parametrize("t5", [True, False], ids=["with T5", "without"])
def test_captions_are_what_the_pipeline_tells_its_denoiser(tiny_sd3: Path, tmp_path: Path, t5: bool) -> None:
    base = tiny_sd3
    if not t5:
        base = Path(shutil.copytree(tiny_sd3, tmp_path / "base"))
        shutil.rmtree(base / "text_encoder_3")
        shutil.rmtree(base / "tokenizer_3")
    pipeline = StableDiffusion3Pipeline.from_pretrained(
        tiny_sd3, **({} if t5 else {"text_encoder_3": None, "tokenizer_3": None})
    )
    stack, counted = CODE.load_text(base, CPU), token_counter(base, FACTS)
    for length in (256, 24):
        for caption, encoding in zip(CAPTIONS, stack.encode(CAPTIONS, length), strict=True):
            with torch.no_grad():
                wanted, _, pooled, _ = pipeline.encode_prompt(
                    caption, caption, caption, do_classifier_free_guidance=False, max_sequence_length=length
                )
            assert encoding["prompt_embeds"].shape[0] == CLIP_TOKENS + length
            torch.testing.assert_close(encoding["prompt_embeds"], wanted[0], atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(encoding["pooled"], pooled[0], atol=1e-6, rtol=1e-5)
            kept = length if counted is None else min(length, counted(caption))
            assert int(encoding["length"]) == CLIP_TOKENS + kept
    assert (counted is None) is not t5


def test_latents_are_the_pipelines_and_come_back(tiny_sd3: Path) -> None:
    vae = StableDiffusion3Pipeline.from_pretrained(tiny_sd3).vae
    stack = CODE.load_vae(tiny_sd3, CPU)
    pixels = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    latents = stack.encode(pixels)
    with torch.no_grad():
        raw = vae.encode(pixels).latent_dist.mode()
        torch.testing.assert_close(latents, (raw - 0.0609) * 1.5305)
        torch.testing.assert_close(stack.decode(latents), vae.decode(raw, return_dict=False)[0])
    geometry = ROW.geometry(tiny_sd3)
    assert (geometry.downscale, geometry.patch, geometry.latent_channels, geometry.most_side) == (8, 2, 4, 16)


@pytest.mark.parametrize("steps", [1, 4, 28])
def test_noise_levels_are_the_pipelines(tiny_sd3: Path, steps: int) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(tiny_sd3 / "scheduler")
    scheduler.set_timesteps(steps)
    assert CODE.sampling_sigmas(steps, 1024, tiny_sd3) == pytest.approx(scheduler.sigmas.tolist(), abs=1e-6)


def test_levels_are_trained_as_diffusers_own_script_draws_them(tiny_sd3: Path) -> None:
    """Its train_dreambooth_lora_sd3.py: logit-normal places among the scheduler's own, shifted levels."""
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(tiny_sd3 / "scheduler")
    torch.manual_seed(0)
    places = compute_density_for_timestep_sampling("logit_normal", 4000, logit_mean=0.0, logit_std=1.0)
    wanted = scheduler.sigmas[(places * 1000).long()]
    source, draw = torch.Generator().manual_seed(1), flow.TimestepDraw()
    levels = torch.stack([flow.draw_sigma(draw, 1024, source) for _ in range(4000)])
    at = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    assert torch.allclose(levels.quantile(at), wanted.quantile(at), atol=0.02)


def test_sizes_beyond_the_table_of_positions_are_refused_by_name(tiny_sd3: Path) -> None:
    values = {
        "model": {"family": "sd3", "base_model": str(tiny_sd3)},
        "dataset": {"resolution": 128, "max_bucket_size": 512, "min_bucket_size": 32, "folders": [{"path": "x"}]},
        "sampling": {"prompts": [{"prompt": "a", "width": 320, "height": 64}], "sample_every_n_steps": 1},
    }
    config = parse(values).config
    assert config is not None
    errors = plan_for(config, scan_of([(128, 128), (2000, 250)])).problems
    messages = {problem.setting: problem.text for problem in errors if problem.severity == "error"}
    assert "at most 256 px" in messages["dataset.max_bucket_size"]
    assert "Sample 1 is 320x64" in messages["sampling.prompts"]


def test_what_does_not_belong_is_named(tiny_sd3: Path, tiny_flux: Path, tmp_path: Path) -> None:
    assert "StableDiffusion3Pipeline" in family("flux").check_base_model(tiny_sd3)[0].text
    base = Path(shutil.copytree(tiny_sd3, tmp_path / "base"))
    config = base / "transformer" / "config.json"
    changed = {"joint_attention_dim": 8, "pooled_projection_dim": 9, "patch_size": 4}
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    message = " ".join(problem.sentence() for problem in ROW.check_base_model(base))
    assert "text width is 8" in message and "CLIP encoders is 40" in message and "the transformer's is 4" in message


def test_a_lora_says_which_of_the_models_it_is_for(tiny_sd3: Path, tmp_path: Path) -> None:
    assert ROW.lora_architecture(tiny_sd3) == "stable-diffusion-3-5-medium/lora"
    config = tiny_sd3 / "transformer" / "config.json"
    of_3 = json.loads(config.read_text()) | {"qk_norm": None, "dual_attention_layers": []}
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(of_3))
    assert ROW.lora_architecture(tmp_path) == "stable-diffusion-3-medium/lora"
