"""Trains the demo's autoencoder: 8x downscale, 16 latent channels, as FLUX's own."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
from diffusers import AutoencoderKL

from .pace import Average, Pace, autocast
from .pictures import Bucket

log = logging.getLogger(__name__)
LEARNING_RATE = 1e-3
KL_WEIGHT = 1e-4
SPREAD_WEIGHT = 0.02
CROP = 128


def make_vae(channels: Sequence[int] = (32, 64, 96, 128), groups: int = 8) -> AutoencoderKL:
    levels = len(channels)
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=16, sample_size=256,
        block_out_channels=tuple(channels), layers_per_block=1, norm_num_groups=groups,
        down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels,
        use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False,
        scaling_factor=1.0, shift_factor=0.0,
    )  # fmt: skip


def to_pixels(batch: torch.Tensor) -> torch.Tensor:
    """(B, H, W, 3) uint8 to (B, 3, H, W) float32 in [-1, 1]."""
    return (batch.permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def _crops(sets: list[torch.Tensor], weights: np.ndarray, count: int, rng: np.random.Generator) -> torch.Tensor:
    """`count` crops of 128 px from one of the sets: what is learned here is local, and a crop costs a quarter."""
    pixels = sets[int(rng.choice(len(sets), p=weights))]
    index = torch.from_numpy(rng.integers(0, len(pixels), count)).to(pixels.device)
    y = int(rng.integers(0, pixels.shape[1] - CROP + 1))
    x = int(rng.integers(0, pixels.shape[2] - CROP + 1))
    batch = to_pixels(pixels[index, y : y + CROP, x : x + CROP])
    return batch.flip(3) if rng.random() < 0.5 else batch


def _loss(vae: AutoencoderKL, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    posterior = vae.encode(pixels).latent_dist
    mean, logvar = posterior.mean.float(), posterior.logvar.float()
    latents = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
    error = vae.decode(latents).sample.float() - pixels
    # Differences of neighbours: an error there is a blurred edge.
    edges = (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    mse = error.square().mean()
    # One shift and scale serve all channels, so each is kept near mean 0 and standard deviation 1.
    spread = (mean.std(dim=(0, 2, 3)) - 1).square().mean() + mean.mean(dim=(0, 2, 3)).square().mean()
    return error.abs().mean() + mse + 0.5 * edges + KL_WEIGHT * kl + SPREAD_WEIGHT * spread, mse.detach()


def train_vae(vae: AutoencoderKL, world: list[Bucket], patterns: list[Bucket], pace: Pace, batch: int, seed: int,
              device: torch.device) -> dict[str, float]:  # fmt: skip
    """Train in place; a quarter of the crops are patterns. Returns the steps and the last training loss."""
    vae.to(device, memory_format=torch.channels_last).train()
    sets = [torch.from_numpy(b.pixels).to(device) for b in (*world, *patterns)]
    share = [0.75 / len(world)] * len(world) + [0.25 / len(patterns)] * len(patterns)
    average = Average([vae], 0.998)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-3,
                                  fused=device.type == "cuda")  # fmt: skip
    rng = np.random.default_rng(seed)
    loss = torch.zeros(())
    while pace.progress() < 1:
        for group in optimizer.param_groups:
            group["lr"] = pace.learning_rate(LEARNING_RATE, 100)
        with autocast(device):
            loss, mse = _loss(vae, _crops(sets, np.asarray(share), batch, rng))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        average.update()
        pace.step += 1
        if pace.step % 200 == 0:
            log.info("vae step %d: loss %.4f, PSNR %.1f dB", pace.step, loss.item(), -10 * math.log10(mse.item() / 4))
    average.copy_to_modules()
    vae.eval().requires_grad_(False)
    return {"steps": pace.step, "loss": round(loss.item(), 5)}


@torch.no_grad()
def encode(vae: AutoencoderKL, bucket: Bucket, device: torch.device, batch: int = 32) -> torch.Tensor:
    """Posterior means of a bucket's pictures, (N, 16, H/8, W/8) float32, before shift and scale."""
    parts = []
    for i in range(0, len(bucket.pixels), batch):
        pixels = to_pixels(torch.from_numpy(bucket.pixels[i : i + batch]).to(device))
        with autocast(device):
            parts.append(vae.encode(pixels).latent_dist.mean.float())
    return torch.cat(parts)


def measure_scaling(vae: AutoencoderKL, latents: list[torch.Tensor]) -> dict[str, float]:
    """Set the shift and scale that give latents mean 0 and standard deviation 1, and return them."""
    flat = torch.cat([part[:256].flatten() for part in latents])
    shift, scale = flat.mean().item(), 1 / flat.std().item()
    vae.register_to_config(shift_factor=round(shift, 6), scaling_factor=round(scale, 6))
    spread = torch.cat([p[:256].transpose(0, 1).flatten(1) for p in latents], 1).std(1)
    measured = {"shift_factor": shift, "scaling_factor": scale}
    measured |= {"channel_std_least": spread.min().item(), "channel_std_most": spread.max().item()}
    return {name: round(value, 6) for name, value in measured.items()}


@torch.no_grad()
def psnr(vae: AutoencoderKL, buckets: list[Bucket], device: torch.device) -> float:
    """Mean PSNR (dB) of whole pictures through encoder and decoder."""
    values = []
    for bucket in buckets:
        for i in range(0, len(bucket.pixels), 16):
            pixels = to_pixels(torch.from_numpy(bucket.pixels[i : i + 16]).to(device))
            with autocast(device):
                again = vae.decode(vae.encode(pixels).latent_dist.mean).sample.float().clamp(-1, 1)
            mse = (again - pixels).square().mean(dim=(1, 2, 3))
            values += (-10 * torch.log10(mse / 4)).tolist()
    return float(np.mean(values))
