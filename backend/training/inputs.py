"""Holds what a run works on besides the denoiser: settings, base model, pictures, plan, encoded data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from backend.config.layer_patterns import Size
from backend.config.schema import Config
from backend.dataset.buckets import Fit
from backend.dataset.controls import sample_items
from backend.dataset.items import DatasetScan, Item
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts, Geometry
from backend.latents.masks import MaskCache
from backend.latents.store import LatentCache, TextCache
from backend.latents.wanted import Words, wanted_latents, wanted_text
from backend.lora.comfyui_keys import LayerNames
from backend.models.common.base_weights import BaseWeights
from backend.models.common.load_options import LoadOptions
from backend.models.family import Family
from backend.objectives.base import Objective
from backend.plan.caption_draw import trains_text
from backend.plan.memory.settings import MemorySettings
from backend.plan.memory.weight_bytes import stored_as
from backend.plan.mode_plan import fitting_frames, fitting_size
from backend.plan.plan import Plan
from backend.training.expected_memory import ExpectedMemory
from backend.training.full_weights import denoiser_dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Everything that a run works on but the denoiser, gathered and checked.

    The settings are whole here: what a part of the run is built from them is decided by its builder.
    """

    cfg: Config
    family: FamilyFacts
    code: Family
    base: BaseModelFiles
    device: torch.device
    dtype: torch.dtype
    """Of the frozen weights."""
    precision: str
    """Of accelerate's mixed precision: no, fp16 or bf16."""
    geometry: Geometry
    scan: DatasetScan
    plan: Plan
    sizes: dict[str, Size]
    """Module paths with a LoRA, and its rank, alpha and rate there; none where the whole model is trained."""
    names: LayerNames
    latents: LatentCache
    texts: TextCache
    masks: MaskCache
    objective: Objective
    expected: ExpectedMemory | None = None
    swapped: tuple[str, ...] = ()
    """Module paths of the blocks whose weights stay in the machine's memory."""
    base_weights: BaseWeights | None = None
    """LoRAs that are merged into the base while it loads."""
    product_way: str | None = None
    """How 8-bit products are computed, by `product_ways.name_of_way`; None where the settings alone say it."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Module paths with a LoRA."""
        return tuple(self.sizes)

    def load_vae(self) -> Any:
        """The VAE that the settings name, on the CPU."""
        return self.code.load_vae(self.base, replace(self.loading, device=torch.device("cpu")))

    @property
    def resolved_memory(self) -> MemorySettings | None:
        """The memory settings with auto resolved; None where nothing is estimated."""
        return None if self.expected is None else self.expected.estimate.settings

    @property
    def tiled_encode(self) -> bool:
        """Whether pictures are encoded in tiles."""
        resolved = self.resolved_memory
        return resolved.tiled_encode if resolved is not None else self.cfg.memory.vae_tiling == "on"

    @property
    def loading(self) -> LoadOptions:
        """How a part of the base model is loaded that is neither quantised nor swapped."""
        return LoadOptions(self.dtype, self.device, self.cfg.model.variant)

    @property
    def denoiser_loading(self) -> LoadOptions:
        """How the denoiser is loaded."""
        memory = self.cfg.memory
        kind = stored_as(memory.base_quantization, memory.base_compute)
        host = self._is_swapped if self.swapped else None
        merge = self.base_weights and self.base_weights.merged
        dtype = denoiser_dtype(self.cfg.training, self.dtype)
        return replace(
            self.loading,
            dtype=dtype,
            quantize=kind,
            compute=memory.base_compute,
            products=self.products,
            host=host,
            merge=merge,
        )

    @property
    def products(self) -> str:
        """What 8-bit products keep and by which kernel they are computed, as `LoadOptions` takes it."""
        return self.product_way or self.auto_products

    @property
    def auto_products(self) -> str:
        """The setting base_products, auto by the memory that is free now: "fast" or "small"."""
        resolved, asked = self.resolved_memory, self.cfg.memory.base_products
        copies = asked == "fast" if resolved is None else resolved.copies
        return "fast" if copies else "small"

    def _is_swapped(self, path: str) -> bool:
        return any(path == block or path.startswith(f"{block}.") for block in self.swapped)

    def running_order(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """The denoiser's blocks in the order in which they run, which is not by class in every family."""
        return self.code.running_order(denoiser)

    @property
    def text_loading(self) -> LoadOptions:
        """How the text encoders are loaded."""
        kind = stored_as(self.cfg.memory.text_encoder_quantization)
        return replace(self.loading, quantize=kind, merge=self.base_weights and self.base_weights.merged)

    @property
    def full(self) -> bool:
        """Whether the denoiser's own weights are trained, and no LoRA."""
        return self.cfg.training.kind == "full"

    @property
    def trains_text(self) -> bool:
        """Whether the text encoders are trained: captions are then encoded in the loop and not cached."""
        return trains_text(self.cfg, self.family)

    @property
    def wanted_text(self) -> list[Words]:
        """Every caption that has to be in the cache, with its length and the pictures that it is read with."""
        return [] if self.trains_text else wanted_text(self.cfg, self.plan)

    def pictures(self) -> list[tuple[Item, Fit]]:
        """Every picture that the run needs encoded, with its cut."""
        samples = []
        for number, prompt in enumerate(self.cfg.sampling.prompts):
            size = fitting_size(prompt.width, prompt.height, self.geometry)
            frames = fitting_frames(prompt.frames, self.geometry, self.family.video)
            samples += self.plan.references.cuts(sample_items(prompt, number), size, frames=frames)
        return wanted_latents(self.plan) + samples

    @property
    def data_digest(self) -> str:
        """Digest of the training pictures, captions and repeats, in their order."""
        lines = (
            f"{item.key} {item.repeats} {item.caption!r}"
            + "".join(f" {control.key}" for control in item.controls)
            + ("" if item.window is None else f" {item.window.to_dict()}")
            + (f" {item.texts!r} {item.trigger!r}" if item.texts else "")
            + ("" if item.mask is None else f" mask {item.mask.key}")
            for item in self.plan.items
        )
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
