"""Wan's text, VAE, noise levels and base models: against diffusers' own pipeline, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline
from diffusers.pipelines.wan.pipeline_wan import prompt_clean

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.families.wan.facts import FACTS
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.models.wan.encoders import cleaned
from backend.plan.texts import token_counter

CPU = LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family("wan")
CAPTIONS = ["a red circle", "", "the small cat in a white house, and the large black dog on a tree"]


def pipeline_of(folder: Path) -> WanPipeline:
    pipeline = WanPipeline.from_pretrained(folder, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_captions_are_what_the_pipeline_tells_its_denoiser(tiny_wan: Path) -> None:
    pipeline, stack = pipeline_of(tiny_wan), CODE.load_text(tiny_wan, CPU)
    counted = token_counter(tiny_wan, FACTS)
    for length in (512, 7):
        for caption, encoding in zip(CAPTIONS, stack.encode(CAPTIONS, length), strict=True):
            with torch.no_grad():
                wanted = pipeline._get_t5_prompt_embeds(caption, max_sequence_length=length)[0]
            real = encoding["prompt_embeds"].shape[0]
            assert real == min(length, counted(caption)) and wanted.shape[0] == length
            torch.testing.assert_close(encoding["prompt_embeds"], wanted[:real], atol=1e-6, rtol=1e-5)
            assert not wanted[real:].any(), "what is not kept is zero"


@pytest.mark.parametrize("caption", ["  a\n\n cat ", "caf\u00c3\u00a9 &amp;amp; b", "", "\u201cgood\u201d \ufb01ne"])
def test_captions_are_cleaned_as_the_pipeline_cleans_them(caption: str) -> None:
    assert cleaned(caption) == prompt_clean(caption)


def test_latents_of_clips_and_pictures_are_the_pipelines_and_come_back(tiny_wan: Path) -> None:
    pipeline, stack = pipeline_of(tiny_wan), CODE.load_vae(tiny_wan, CPU)
    clips = torch.rand(2, 3, 9, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    mean, spread = (torch.tensor(pipeline.vae.config[name]) for name in ("latents_mean", "latents_std"))
    with torch.no_grad():
        raw = pipeline.vae.encode(clips).latent_dist.mode()
    latents = stack.encode(clips)
    assert latents.shape == (2, *FACTS.geometry(tiny_wan).latent_shape(96, 64, 9)) == (2, 4, 3, 8, 12)
    torch.testing.assert_close(latents, (raw - mean.view(1, -1, 1, 1, 1)) / spread.view(1, -1, 1, 1, 1))
    assert stack.decode(latents).shape == clips.shape
    # the first latent frame is the first frame's alone
    picture = stack.encode(clips[:, :, 0])
    torch.testing.assert_close(picture[:, :, 0], latents[:, :, 0])
    assert stack.decode(picture).shape == (2, 3, 1, 64, 96)
    row = stack.encode_row(clips[0])
    assert set(row) == {"latent"} and torch.allclose(row["latent"], latents[0], atol=1e-5)


def test_noise_levels_are_the_pipelines(tiny_wan: Path, tmp_path: Path) -> None:
    scheduler = pipeline_of(tiny_wan).scheduler
    scheduler.set_timesteps(5)
    assert CODE.sampling_sigmas(5, 999, tiny_wan) == pytest.approx(scheduler.sigmas.tolist(), abs=2e-6)
    plain = Path(shutil.copytree(tiny_wan, tmp_path / "plain"))
    config = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 5.0}
    (plain / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    levels = CODE.sampling_sigmas(4, 999, plain)
    assert levels[0] == 1.0 and levels[-1] == 0.0 and sorted(levels, reverse=True) == levels


def changed(base: Path, where: Path, part: str, **values: object) -> Path:
    """A copy of the folder with another config of one part."""
    folder = Path(shutil.copytree(base, where))
    path = folder / part / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def test_what_does_not_belong_is_named(tiny_wan: Path, tmp_path: Path) -> None:
    assert FACTS.check_base_model(tiny_wan) == []
    assert set(FACTS.sizes(tiny_wan)) == {"transformer", "vae", "text_encoder"}
    assert "WanPipeline" in family("flux").check_base_model(tiny_wan)[0].text

    def message_of(base: Path) -> str:
        return " ".join(problem.sentence() for problem in FACTS.check_base_model(base))

    assert "text width is 8" in message_of(changed(tiny_wan, tmp_path / "text", "transformer", text_dim=8))
    assert "starts from a picture" in message_of(changed(tiny_wan, tmp_path / "i2v", "transformer", in_channels=12))
    assert "VAE's channels is 6" in message_of(changed(tiny_wan, tmp_path / "vae", "vae", z_dim=6))
    pickle = tmp_path / "models_t5_umt5-xxl-enc-bf16.pth"
    pickle.write_bytes(b"\x80\x02")
    files = BaseModelFiles(tiny_wan, {"text_encoder": pickle})
    (problem,) = FACTS.check_base_model(files)
    assert "pickle" in problem.text and problem.path == "model.text_encoder"
