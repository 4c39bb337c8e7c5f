"""Qwen-Image's text, VAE, noise levels and files: against diffusers' own pipeline, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift, retrieve_timesteps

from backend.families.qwen_image.facts import FACTS, TEMPLATE, TEMPLATE_TOKENS
from backend.families.table import family
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.plan.texts import token_counter

ROW, CPU = family("qwen_image"), LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family(ROW.name)
CAPTIONS = ["a red circle", "", "the small {} cat in a white house, and the large black dog on a tree"]


def test_captions_are_what_the_pipeline_tells_its_denoiser(tiny_qwen_image: Path) -> None:
    pipeline = QwenImagePipeline.from_pretrained(tiny_qwen_image)
    assert (pipeline.prompt_template_encode, pipeline.prompt_template_encode_start_idx) == (TEMPLATE, TEMPLATE_TOKENS)
    stack, counted = CODE.load_text(tiny_qwen_image, CPU), token_counter(tiny_qwen_image, FACTS)
    for length in (512, 7):
        for caption, encoding in zip(CAPTIONS, stack.encode(CAPTIONS, length), strict=True):
            with torch.no_grad():
                wanted, mask = pipeline.encode_prompt(caption, device="cpu", max_sequence_length=length)
            assert mask is None and encoding["prompt_embeds"].shape[0] == min(length, counted(caption))
            torch.testing.assert_close(encoding["prompt_embeds"], wanted[0], atol=1e-6, rtol=1e-5)
    # the template's first words are left out and its last five tokens are not: an empty caption says something
    assert counted("") == 5 and counted("a red circle") == 8


def test_captions_are_counted_without_tokenizer_json_too(tiny_qwen_image: Path, tmp_path: Path) -> None:
    """As the published model has it: vocabulary, merges, and the tokens that its tokenizer_config.json adds."""
    whole = json.loads((tiny_qwen_image / "tokenizer" / "tokenizer.json").read_text())
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    special = {str(token["id"]): {"content": token["content"]} for token in whole["added_tokens"]}
    vocabulary = {word: number for word, number in whole["model"]["vocab"].items() if str(number) not in special}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": special}))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole["model"]["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    counts = token_counter(tmp_path, FACTS), token_counter(tiny_qwen_image, FACTS)
    texts = [*CAPTIONS, "it's 2024,  isn't\n\n it?  Über-größe  (DON'T)\t"]
    assert [counts[0](caption) for caption in texts] == [counts[1](caption) for caption in texts]


def test_latents_are_the_pipelines_and_come_back(tiny_qwen_image: Path) -> None:
    pipeline = QwenImagePipeline.from_pretrained(tiny_qwen_image)
    stack = CODE.load_vae(tiny_qwen_image, CPU)
    pixels = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    latents = stack.encode(pixels)
    assert latents.shape == (2, 4, 8, 12)
    vae = pipeline.vae
    with torch.no_grad():
        raw = vae.encode(pixels[:, :, None]).latent_dist.mode()
        mean, spread = (torch.tensor(vae.config[n]).view(1, -1, 1, 1, 1) for n in ("latents_mean", "latents_std"))
        torch.testing.assert_close(latents, ((raw - mean) / spread)[:, :, 0])
        torch.testing.assert_close(stack.decode(latents), vae.decode(raw, return_dict=False)[0][:, :, 0])
    geometry = ROW.geometry(tiny_qwen_image)
    assert (geometry.downscale, geometry.patch, geometry.latent_channels) == (8, 2, 4)


@pytest.mark.parametrize(("steps", "tokens"), [(1, 16), (4, 1024), (50, 6000)])
def test_noise_levels_are_the_pipelines(tiny_qwen_image: Path, steps: int, tokens: int) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(tiny_qwen_image / "scheduler")
    mu = calculate_shift(tokens, 256, 8192, 0.5, 0.9)
    levels = CODE.sampling_sigmas(steps, tokens, tiny_qwen_image)
    if steps == 1:
        # stretching one level divides zero by zero in diffusers
        assert levels == [1.0, 0.0]
        return
    retrieve_timesteps(scheduler, steps, "cpu", sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    assert levels == pytest.approx(scheduler.sigmas.tolist(), abs=1e-6)
    assert levels[-2] == pytest.approx(0.02, abs=1e-6) and levels[-1] == 0


def test_what_does_not_belong_is_named(tiny_qwen_image: Path, tiny_flux: Path, tmp_path: Path) -> None:
    assert "QwenImagePipeline" in family("flux").check_base_model(tiny_qwen_image)[0].text
    base = Path(shutil.copytree(tiny_qwen_image, tmp_path / "base"))
    config = base / "transformer" / "config.json"
    changed = json.loads(config.read_text()) | {"joint_attention_dim": 8, "zero_cond_t": True}
    config.write_text(json.dumps(changed))
    shutil.rmtree(base / "tokenizer")
    message = " ".join(problem.sentence() for problem in ROW.check_base_model(base))
    assert "text width is 8" in message and "zero_cond_t" in message and "tokenizer" in message
