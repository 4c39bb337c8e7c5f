"""Decodes samples on a GPU that the denoiser fills: with the denoiser in RAM, in tiles, at last on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs import recording
from backend.compile.memory_shortage import is_out_of_vram
from backend.memory.exclusive_device import offloaded
from backend.plan.memory.estimate import tile_px

log = logging.getLogger(__name__)


def tile(vae: nn.Module, side: int | None = None) -> None:
    """Let one of diffusers' VAEs work on tiles of `side` pixels, which overlap by a quarter and are blended there.

    side: None for the one that the memory estimate counts with.
    """
    side = side or tile_px(getattr(vae, "tile_sample_min_num_frames", 1))
    if hasattr(vae, "tile_sample_min_size"):
        downscale = vae.tile_sample_min_size // vae.tile_latent_min_size
        vae.tile_sample_min_size, vae.tile_latent_min_size = side, side // downscale
        vae.enable_tiling()
        return
    stride = side * 3 // 4
    vae.enable_tiling(
        tile_sample_min_height=side,
        tile_sample_min_width=side,
        tile_sample_stride_height=stride,
        tile_sample_stride_width=stride,
    )


@dataclass
class SampleDecoder:
    """Turns sample latents into pixels."""

    load_vae: Callable[[], Any]
    """Loads the family's VAE on the CPU; called once, and the VAE is kept off the device between samples."""
    denoiser: nn.Module
    device: torch.device
    exclusive: bool = False
    """The denoiser leaves the GPU while samples are decoded."""
    tiled: bool = False
    """Pictures are decoded in tiles."""
    may_leave: bool = True
    """Whether the denoiser may leave the GPU too once it is full."""
    may_tile: bool = True
    """Whether tiles may be used too once the GPU is full."""
    _vae: Any = None

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """The VAE is on the GPU until the end of this: several pictures are decoded before it leaves."""
        self._vae = self._vae or self.load_vae()
        with offloaded(self.denoiser, self.device) if self.exclusive and self.device.type != "cpu" else nullcontext():
            try:
                yield
            finally:
                self._vae.to("cpu")
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()

    def decode(self, latent: Tensor) -> Tensor:
        """Pixels (3, H, W) float32 on the CPU of a latent (C, h, w), (3, F, H, W) of a clip's (C, f, h, w).

        Asked for inside of `on_device`.
        """
        if self.tiled:
            tile(self._vae.vae)
        done = self._tried(latent, alone=False)
        if done is not None:
            return done
        if recording.forget(self.denoiser):
            done = self._tried(latent, alone=False)
            if done is not None:
                return done
        for change in self._lighter():
            log.warning("No room on the GPU to decode a sample; %s", change)
            torch.cuda.empty_cache()
            done = self._tried(latent, alone=self.may_leave and not self.exclusive)
            if done is not None:
                return done
        log.warning("No room on the GPU to decode a sample; it is decoded on the CPU")
        self._vae.to("cpu")
        return self._pixels(latent.cpu())

    def _tried(self, latent: Tensor, alone: bool) -> Tensor | None:
        """Pixels, with the denoiser gone meanwhile if `alone`; None when the GPU is full."""
        try:
            with offloaded(self.denoiser, self.device) if alone else nullcontext():
                self._vae.to(self.device)
                return self._pixels(latent).cpu()
        except RuntimeError as error:
            if not is_out_of_vram(error):
                raise
        # outside of the except: an exception that is being handled keeps what failed in memory
        return None

    def _pixels(self, latent: Tensor) -> Tensor:
        """What the VAE makes of `latent`; in float32 from now on where its format is too narrow, as fp16 for SDXL's."""
        pixels = self._vae.decode(latent[None])[0]
        narrow = self._vae.dtype != torch.float32 and not torch.isfinite(pixels).all()
        if not narrow or not torch.isfinite(latent).all():
            return pixels
        log.warning("A sample holds NaN in %s; its VAE works in float32 from now on", self._vae.dtype)
        return self._vae.to(dtype=torch.float32).decode(latent[None])[0]

    def _lighter(self) -> Iterator[str]:
        """Ways to need less of the GPU, each taken when the one before it was not enough."""
        if self.may_leave and not self.exclusive and self.device.type == "cuda":
            yield "the denoiser leaves it meanwhile"
        if self.may_tile and not self.tiled:
            self.tiled = True
            tile(self._vae.vae)
            yield "it is decoded in tiles"
