"""Encodes the control images of a preview's prompts, each once: what an edit, or a clip, starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.compile.memory_shortage import is_out_of_vram
from backend.config.schema import SamplePrompt
from backend.dataset.controls import sample_items
from backend.dataset.items import Item
from backend.dataset.references import Cut, References
from backend.latents.cache import encode_picture
from backend.memory.exclusive_device import offloaded
from backend.memory.sample_decoder import tile
from backend.models.common.conditioning import CONTROLS
from backend.plan.mode_plan import fitting_frames, fitting_size

_KEPT = 32
"""Images of which what the VAE made of them stays in RAM."""


@dataclass(kw_only=True, slots=True)
class ControlEncoder:
    """The VAE as an encoder; it is loaded for images that are new, and leaves again."""

    load: Callable[[], Any]
    """Loads the family's VAE on the CPU, with all that it encodes with."""
    references: References
    transparency: str
    device: torch.device
    tiled: bool
    """Images are encoded in tiles."""
    may_tile: bool
    """Whether tiles may be used too once the GPU is full."""
    denoiser: Callable[[], nn.Module | None]
    """What may leave the GPU while images are encoded, once it is loaded."""
    _rows: dict[Cut, dict[str, Tensor]] = field(default_factory=dict)

    def encode(self, prompts: Sequence[SamplePrompt]) -> None:
        """Encode what is new of these prompts' images. Refused where one can't be read."""
        missing = [cut for prompt in prompts for cut in self._cuts(prompt) if cut not in self._rows]
        if not missing:
            return
        if len(self._rows) + len(missing) > _KEPT:
            self._rows.clear()
            missing = [cut for prompt in prompts for cut in self._cuts(prompt)]
        try:
            self._encode(missing)
            return
        except RuntimeError as error:
            if self.device.type == "cpu" or not is_out_of_vram(error):
                raise
        # outside of the except: an exception that is being handled keeps what failed in memory
        torch.cuda.empty_cache()
        self.tiled = self.tiled or self.may_tile
        denoiser = self.denoiser()
        with nullcontext() if denoiser is None else offloaded(denoiser, self.device):
            self._encode(missing)

    def conditioning(self, prompt: SamplePrompt) -> dict[str, Tensor]:
        """What the denoiser reads of the prompt's images, on the CPU; empty without any. After `encode`."""
        rows = [self._rows[cut] for cut in self._cuts(prompt)]
        if not self.references.starts:
            return dict(zip(CONTROLS, (row["latent"] for row in rows), strict=False))
        return {name: tensor for row in rows for name, tensor in row.items() if name != "latent"}

    def read_with(self, prompt: SamplePrompt) -> tuple[Cut, ...]:
        """The images as the text encoder reads them together with the prompt, of a family where it does."""
        return self.references.cuts(_items(prompt), self._size(prompt), read=True)

    def _cuts(self, prompt: SamplePrompt) -> tuple[Cut, ...]:
        geometry, video = self.references.geometry, self.references.video
        frames = fitting_frames(prompt.frames, geometry, video)
        return self.references.cuts(_items(prompt), self._size(prompt), frames=frames)

    def _size(self, prompt: SamplePrompt) -> tuple[int, int]:
        return fitting_size(prompt.width, prompt.height, self.references.geometry)

    def _encode(self, cuts: Sequence[Cut]) -> None:
        vae = self.load().to(self.device)
        if self.tiled:
            tile(vae.vae)
        try:
            for cut in cuts:
                row = encode_picture(vae, *cut, self.transparency)
                self._rows[cut] = {name: tensor.cpu() for name, tensor in row.items()}
        finally:
            vae.to("cpu")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()


def _items(prompt: SamplePrompt) -> tuple[Item, ...]:
    """The prompt's control images as they are now. Refused when one can't be read."""
    try:
        return sample_items(prompt, 0)
    except Refused as error:
        raise Refused(error.text, error.remedy) from error
