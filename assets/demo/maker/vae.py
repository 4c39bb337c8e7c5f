"""Trains the demo's autoencoder: 8x downscale, 16 latent channels, as FLUX's own."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from .pace import Average, Pace, autocast
from .pictures import Bucket
from .speed import Fast

log = logging.getLogger(__name__)
LEARNING_RATE = 8e-4
KL_WEIGHT = 1e-4
SPREAD_WEIGHT = 0.02
HALF_WEIGHT = 0.25
PATTERN_SHARE = 6  # one crop in so many is a pattern
CROP = 160
AVERAGE_EVERY = 8


def make_vae(channels: Sequence[int] = (32, 48, 96, 128), groups: int = 8) -> AutoencoderKL:
    levels = len(channels)
    vae = AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=16, sample_size=256,
        block_out_channels=tuple(channels), layers_per_block=1, norm_num_groups=groups,
        down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels,
        use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False,
        scaling_factor=1.0, shift_factor=0.0,
    )  # fmt: skip
    # Little noise on the latents from the start: with the usual half of it, hundreds of steps pass before any picture.
    with torch.no_grad():
        vae.encoder.conv_out.bias[16:] = -5.0
    return vae


def to_pixels(batch: torch.Tensor) -> torch.Tensor:
    """(B, H, W, 3) uint8 to (B, 3, H, W) float32 in [-1, 1]."""
    return (batch.permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def _crops(world: list[torch.Tensor], patterns: torch.Tensor, count: int, rng: np.random.Generator) -> torch.Tensor:
    """`count` crops of CROP px: what is learned here is local, and a crop costs less."""
    parts = []
    rare = max(1, count // PATTERN_SHARE)
    for pixels, n in ((world[int(rng.integers(len(world)))], count - rare), (patterns, rare)):
        index = torch.from_numpy(rng.integers(0, len(pixels), n)).to(pixels.device)
        y = int(rng.integers(0, pixels.shape[1] - CROP + 1))
        x = int(rng.integers(0, pixels.shape[2] - CROP + 1))
        parts.append(pixels[index, y : y + CROP, x : x + CROP])
    batch = to_pixels(torch.cat(parts))
    return batch.flip(3).contiguous(memory_format=torch.channels_last) if rng.random() < 0.5 else batch


def _errors(error: torch.Tensor) -> torch.Tensor:
    # Differences of neighbours: an error there is a blurred edge.
    edges = (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    return error.abs().mean() + error.square().mean() + 0.5 * edges


def vae_loss(vae: AutoencoderKL, pixels: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the mean squared error of the reconstruction. `noise` is standard normal, as large as the
    latents (B, 16, CROP/8, CROP/8)."""
    mean, logvar = vae.encoder(pixels).float().chunk(2, dim=1)
    logvar = logvar.clamp(-30, 20)
    latents = mean + noise * torch.exp(0.5 * logvar)
    error = vae.decoder(latents).float() - pixels
    # Half-size latents must decode to the half-size picture: it keeps latents smooth, which makes them far easier to
    # learn to draw (scale equivariance; Skorokhodov et al. 2025, arXiv:2502.14831).
    half = F.avg_pool2d(pixels, 2)
    half_error = vae.decoder(F.avg_pool2d(latents, 2)).float() - half
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    # One shift and scale serve all channels, so each is kept near mean 0 and standard deviation 1.
    spread = (mean.std(dim=(0, 2, 3)) - 1).square().mean() + mean.mean(dim=(0, 2, 3)).square().mean()
    loss = _errors(error) + HALF_WEIGHT * _errors(half_error) + KL_WEIGHT * kl + SPREAD_WEIGHT * spread
    return loss, error.detach().square().mean()


def warm_vae(vae: AutoencoderKL, batch: int, device: torch.device, compiled: bool) -> Fast:
    """Move the autoencoder to the device and prepare its loss for batches of `batch` crops."""
    vae.to(device, memory_format=torch.channels_last).train()
    fast = Fast(vae_loss, compiled)
    pixels = torch.rand(batch, 3, CROP, CROP, device=device).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        with autocast(device):
            fast(vae, pixels, torch.randn(batch, 16, CROP // 8, CROP // 8, device=device))[0].backward()
        vae.zero_grad(set_to_none=True)

    fast.warm(step)
    return fast


def train_vae(vae: AutoencoderKL, fast: Fast, world: list[Bucket], patterns: Bucket, pace: Pace, batch: int, seed: int,
              device: torch.device) -> dict[str, float]:  # fmt: skip
    """Train in place. Returns the steps and the last training loss."""
    sets = [torch.from_numpy(b.pixels[:1500]).to(device) for b in world]
    practice = torch.from_numpy(patterns.pixels).to(device)
    average = Average([vae], 0.998**AVERAGE_EVERY)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-3,
                                  fused=device.type == "cuda")  # fmt: skip
    rng = np.random.default_rng(seed)
    loss = mse = torch.ones(())
    while pace.progress() < 1:
        for group in optimizer.param_groups:
            group["lr"] = pace.learning_rate(LEARNING_RATE, 200)
        pixels, noise = _crops(sets, practice, batch, rng), torch.randn(batch, 16, CROP // 8, CROP // 8, device=device)
        with autocast(device):
            loss, mse = fast(vae, pixels, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 0.5)
        optimizer.step()
        pace.step += 1
        if pace.step % AVERAGE_EVERY == 0:
            average.update()
        if pace.step % 500 == 0:
            log.info("vae step %d: loss %.4f, PSNR %.1f dB", pace.step, loss.item(), -10 * math.log10(mse.item() / 4))
    last = loss.item()
    average.update()
    average.copy_to_modules()
    vae.eval().requires_grad_(False)
    return {"steps": pace.step, "loss": round(last, 5)}


@torch.no_grad()
def encode(vae: AutoencoderKL, bucket: Bucket, device: torch.device, batch: int = 64) -> torch.Tensor:
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
