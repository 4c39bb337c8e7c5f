"""A run's first loss, computed a second time from picture and caption with diffusers' own parts and schedulers.

At the start B is 0, so that the base model predicts. One picture, twice in a batch, and two batches a step: the first
with its caption, the second, of the second epoch, without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, FluxPipeline, StableDiffusionXLPipeline
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.training_utils import compute_loss_weighting_for_sd3, compute_snr
from PIL import Image
from torch import Tensor

from backend.memory.seeds import generator
from backend.training.trainer import Trainer
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, rows, train_here

CAPTION = "sks, a red ring, drawing 0"
BOX = (16.2, 0.0, 316.8, 501.0)
"""What is left of 333 x 501 px at the buckets' 3 to 5, and the middle of it."""

DATA = {"batch_size": 2, "trigger_word": "sks", "caption_dropout_every_n_epochs": 2}
TRAINING = {"max_train_steps": 1, "gradient_accumulation_steps": 2, "seed": 7}
DRAW = {"min_timestep": 100.0, "max_timestep": 800.0}


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What torch's own generator, from which LoRA dropout draws, was set to for each batch."""
    numbers: list[int] = []
    backward = Trainer.backward

    def noted(self: Trainer, loss: Tensor) -> None:
        numbers.append(torch.initial_seed())
        backward(self, loss)

    monkeypatch.setattr(Trainer, "backward", noted)
    return numbers


def first_row(base: Path, where: Path, **changes: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of the one step, and what validation measured before it."""
    images = draw_pictures(where / "images", ((333, 501),))
    folders = {"folders": [{"path": str(images), "num_repeats": 2}]}
    validation = {"validation_folders": [{"path": str(images), "name": "same"}], "validate_at_start": True}
    validation |= {"validation_sigmas": [0.3], "validation_repeats": 1, "validation_seed": 5}
    changes["dataset"] = {**DATA, **folders, **changes.get("dataset", {})}
    cfg = config(base, images, where, training=TRAINING, validation=validation, saving={"save_state": False}, **changes)
    run, code = train_here(cfg)
    assert code == 0 and not run.has_state(), events(run, "error")
    return rows(run)[0], events(run, "validation")


def drawn(shape: tuple[int, ...], *where: int | str, seed: int = 7) -> Tensor:
    return torch.randn(shape, generator=generator(seed, *where))


def latent_of(vae: Any, where: Path, size: tuple[int, int]) -> Tensor:
    """The picture's latent (C, h, w), as pipelines normalise it."""
    picture = Image.open(where / "images" / "picture_0.png").resize(size, Image.Resampling.LANCZOS, box=BOX)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        latents = vae.encode(pixels.float()).latent_dist.mode()[0]
    return (latents - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor


def measured_noise(x0: Tensor, where: Path) -> Tensor:
    """That of validation, which goes by the picture's content."""
    key = hashlib.sha256((where / "images" / "picture_0.png").read_bytes()).hexdigest()
    return drawn(x0.shape, "validation", key, 0, seed=5)


def mean_over_step(loss: Callable[[str, int, int], Tensor]) -> float:
    """loss: caption, number of the batch, row -> the row's loss."""
    return float(
        torch.stack([loss(text, batch, row) for batch, text in enumerate((CAPTION, "")) for row in (0, 1)]).mean()
    )


def test_flux(tiny_flux: Path, tmp_path: Path, seeds: list[int]) -> None:
    """Guidance trained with, draw, weights and distance of a flow matching model."""
    options = {"timestep_sampling": "flux_shift", "sigmoid_scale": 0.7, "weighting_scheme": "cosmap"}
    row, measured = first_row(
        tiny_flux, tmp_path,
        model={"guidance_scale": 2.5}, timesteps={**options, **DRAW}, loss={"loss_type": "huber", "huber_c": 0.2},
    )  # fmt: skip
    pipeline = FluxPipeline.from_pretrained(tiny_flux)
    x0 = latent_of(pipeline.vae, tmp_path, (48, 80))
    places = pipeline._prepare_latent_image_ids(1, 5, 3, "cpu", torch.float32)

    @torch.no_grad()
    def predicted(x: Tensor, sigma: Tensor, caption: str) -> Tensor:
        words, pooled, ids = pipeline.encode_prompt(caption, None, device="cpu", max_sequence_length=16)
        out = pipeline.transformer(
            pipeline._pack_latents(x[None], 1, 4, 10, 6), words, pooled, sigma[None], places, ids, torch.tensor([2.5])
        )[0]
        return pipeline._unpack_latents(out, 80, 48, 8)[0]

    def loss(caption: str, batch: int, number: int) -> Tensor:
        # by the odds of 15 image tokens
        odds = torch.exp(0.7 * drawn((), "sigma", batch, number) + calculate_shift(15))
        sigma = 0.1 + 0.7 * odds / (1 + odds)
        noise = drawn(x0.shape, "noise", batch, number)
        wrong = predicted((1 - sigma) * x0 + sigma * noise, sigma, caption) - (noise - x0)
        # 1 / (1 + noise to signal ratio) is 1 - sigma
        width = 0.8 * (1 - sigma) ** 2 + 0.2
        huber = 2 * width * (torch.sqrt(wrong**2 + width**2) - width)
        return huber.mean() * compute_loss_weighting_for_sd3("cosmap", sigma)

    assert row["loss"] == pytest.approx(mean_over_step(loss), rel=1e-5)
    assert len(seeds) == len(set(seeds)) == 2
    assert [event["step"] for event in measured] == [0, 1]
    noise, sigma = measured_noise(x0, tmp_path), torch.tensor(0.3)
    at = predicted((1 - sigma) * x0 + sigma * noise, sigma, CAPTION)
    assert measured[0]["loss"] == pytest.approx(float(F.mse_loss(at, noise - x0)), rel=1e-5)


def test_sdxl(tiny_sdxl: Path, tmp_path: Path) -> None:
    """Micro-conditioning of a cut picture, zero terminal SNR, noise options and weights of a diffusion model."""
    options = {"prediction_type": "v_prediction", "zero_terminal_snr": True, "min_snr_gamma": 5.0, "noise_offset": 0.1}
    options |= {"ip_noise_gamma": 0.1, "loss_type": "smooth_l1", "huber_c": 0.2, "huber_schedule": "exponential"}
    row, measured = first_row(
        tiny_sdxl, tmp_path,
        model={"family": "sdxl", "text_length": None}, timesteps=DRAW, loss=options,
        dataset={"resolution": 128, "min_bucket_size": 64, "max_bucket_size": 256},
        compile={"compile": False, "shape_mode": "off"},
    )  # fmt: skip
    pipeline = StableDiffusionXLPipeline.from_pretrained(tiny_sdxl)
    known = dict(pipeline.scheduler.config)
    values = {name: known[name] for name in ("beta_start", "beta_end", "beta_schedule")}
    scheduler = DDPMScheduler(**values, rescale_betas_zero_snr=True)
    x0 = latent_of(pipeline.vae, tmp_path, (96, 160))
    # 16.2 px are cut off at the left, at 96 / 300.6 of the size
    ids = pipeline._get_add_time_ids((501, 333), (0, 5), (160, 96), torch.float32, 24)

    @torch.no_grad()
    def predicted(x: Tensor, at: Tensor, caption: str) -> Tensor:
        words, _, pooled, _ = pipeline.encode_prompt(caption, device="cpu", do_classifier_free_guidance=False)
        return pipeline.unet(x[None], at, words, added_cond_kwargs={"text_embeds": pooled, "time_ids": ids}).sample[0]

    def loss(caption: str, batch: int, number: int) -> Tensor:
        at = torch.randint(100, 800, (1,), generator=generator(7, "sigma", batch, number))
        noise = drawn(x0.shape, "noise", batch, number) + 0.1 * drawn((4, 1, 1), "noise offset", batch, number)
        added = noise + 0.1 * drawn(x0.shape, "input perturbation", batch, number)
        wrong = predicted(scheduler.add_noise(x0, added, at), at, caption) - scheduler.get_velocity(x0, noise, at)
        width = 0.2 ** (at / 1000)
        smooth = 2 * (torch.sqrt(wrong**2 + width**2) - width)
        snr = compute_snr(scheduler, at)
        return (smooth.mean() * snr.clamp(max=5) / (snr + 1))[0]

    assert row["loss"] == pytest.approx(mean_over_step(loss), rel=1e-5)
    # validation has plain noise and the plain distance, at 0.3 of the schedule
    noise, at = measured_noise(x0, tmp_path), torch.tensor([300])
    output = predicted(scheduler.add_noise(x0, noise, at), at, CAPTION)
    wanted = F.mse_loss(output, scheduler.get_velocity(x0, noise, at))
    assert measured[0]["loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert len({event["loss"] for event in measured}) == 2
