"""Builds the work that every variant does: a random denoiser with LoRA, and a fixed stream of batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import diffusers
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backend.bench.clips import Clip, exact_clips
from backend.bench.random_part import RandomPart
from backend.bench.sizes import SIZES, Size
from backend.bench.variants import Spec, variant
from backend.config.sections.optimizer import OptimizerSection
from backend.dataset.buckets import exact_buckets, exact_token_counts, token_buckets
from backend.families.table import family
from backend.lora.fused_layers import fuse
from backend.lora.inject import Lora, find_targets, inject
from backend.memory import checkpointing
from backend.memory.block_swap import BlockSwap, swapped_paths
from backend.memory.seeds import generator
from backend.models.common.load_options import LoadOptions
from backend.models.common.weight_loading import load_part
from backend.models.family_classes import load_family
from backend.objectives import flow
from backend.objectives.base import Objective
from backend.objectives.flow_matching import FlowMatching
from backend.optimizers.from_settings import optimizer_of
from backend.optimizers.tensorwise import Tensorwise
from backend.plan.memory.weight_bytes import stored_as

log = logging.getLogger(__name__)

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}


def buckets_of(size: Size, exact: bool, clips: Sequence[Clip] = ()) -> list[tuple[int, ...]]:
    """Sizes (width, height) in px: buckets of nearly this token count, or the exact ones; 17 for 4096 tokens.

    clips: of a video model; the buckets are then these (width, height, frames), or the nearest ones of exact counts.
    """
    geometry = family(size.family).default_geometry
    if clips:
        return list(exact_clips(clips, geometry) if exact else clips)
    if exact:
        unit = geometry.pixels_per_token
        side = int(size.tokens**0.5) * unit
        counts = exact_token_counts(size.tokens, unit, side // 4, side * 2)
        return [(b.width, b.height) for b in exact_buckets(counts, geometry, side // 2, side * 2)]
    return [(b.width, b.height) for b in token_buckets(size.tokens, size.divisor, 4.0, geometry)]


def build(spec: Spec, device: torch.device) -> tuple[nn.Module, Lora | None]:
    """The family's denoiser at the spec's widths with random weights, and a LoRA in every default target.

    No LoRA where all weights are trained. Blocks that the spec swaps lie in the host's memory, as a run loads them.
    """
    size = SIZES[spec.size]
    model = _loaded(spec, device)
    kind = (spec.checkpointing_kind or "block") if spec.checkpointing else "off"
    if spec.full:
        checkpointing.apply(model, kind, random=False)
        return model.train().requires_grad_(True), None
    lora = inject(
        model,
        find_targets(model, family(size.family).default_targets),
        rank=spec.rank,
        alpha=spec.rank,
        dropout=0.0,
        seed=spec.seed,
        cast=not (spec.autocast and size.dtype != "fp32"),
        weight_dtype=DTYPES[spec.lora_dtype],
        device=device,
    )
    if spec.fused_lora:
        fuse(lora)
    checkpointing.apply(model, kind, random=False)
    return model.train(), lora


def frozen_shapes(spec: Spec, device: torch.device) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the frozen denoiser's tensors."""
    return {name: tensor.shape for name, tensor in _source(spec, device).tensors().items()}


def _source(spec: Spec, device: torch.device) -> RandomPart:
    """The frozen denoiser before it is loaded."""
    size, stacks = SIZES[spec.size], spec.stacks
    layers = dict(zip(size.layer_names, stacks, strict=True)) if len(size.layer_names) > 1 else {}
    layers = layers or {size.layer_names[0]: stacks if len(stacks) > 1 else stacks[0]}
    model = getattr(diffusers, family(size.family).denoiser_class)
    return RandomPart(model, {**size.config, **layers}, DTYPES[size.dtype], device, spec.seed)


def optimizer_for(spec: Spec, model: nn.Module, lora: Lora | None, swap: BlockSwap | None) -> Optimizer:
    """AdamW of the LoRA, or the spec's optimizer of all weights, stepped in the backward pass."""
    if lora is not None:
        fused = next(model.parameters()).is_cuda
        optimizer = torch.optim.AdamW(lora.parameters(), lr=spec.learning_rate, fused=fused)
        optimizer.register_step_post_hook(lambda *_: lora.publish())
        return optimizer
    settings = OptimizerSection(optimizer=spec.full, learning_rate=spec.learning_rate)
    groups = [{"params": list(model.parameters()), "lr": spec.learning_rate}]
    keeper = None if swap is None else swap.states
    compiled = variant(spec.variant).compile and next(model.parameters()).is_cuda
    return Tensorwise(
        lambda shadows: optimizer_of(settings, shadows), groups, fused=True, keeper=keeper, compiled=compiled
    )


def _loaded(spec: Spec, device: torch.device) -> nn.Module:
    """The frozen denoiser, by the loader of runs."""
    size = SIZES[spec.size]
    facts, dtype = family(size.family), DTYPES[size.dtype]
    source = _source(spec, device)
    swapped = swapped_paths(source.empty, _running_order(spec, source.empty), spec.swap) if spec.swap else ()
    loading = LoadOptions(
        dtype,
        device,
        quantize=stored_as(spec.base_quantization, spec.base_compute),
        compute=spec.base_compute,
        products=spec.base_products,
        host=lambda path: any(path == block or path.startswith(f"{block}.") for block in swapped),
    )
    return load_part(type(source.empty), source, facts.denoiser, loading)


def swap_of(spec: Spec, model: nn.Module, device: torch.device) -> BlockSwap | None:
    """Swap as many blocks as the spec says; None for none."""
    if not spec.swap:
        return None
    swap = BlockSwap(
        model, _running_order(spec, model), spec.swap, device, ring=spec.swap_ring, trained=bool(spec.full)
    )
    for line in swap.facts.lines():
        log.info(line)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return swap


def _running_order(spec: Spec, model: nn.Module) -> dict[str, nn.ModuleList]:
    return load_family(SIZES[spec.size].family).running_order(model)


def objective_of(size: Size) -> Objective:
    """What the family is trained with, at its plainest."""
    if family(size.family).objective == "flow":
        return FlowMatching()
    from backend.objectives.diffusion import Diffusion, Schedule

    return Diffusion(schedule=Schedule.of(_SCHEDULE))


# Stable Diffusion's own schedule.
_SCHEDULE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "num_train_timesteps": 1000}


@dataclass
class Batch:
    """Clean latents, text and levels of one step, on the device."""

    latents: list[Tensor]
    text: list[dict[str, Tensor]]
    noise: list[Tensor]
    sigma: Tensor
    objective: Objective


class Stream:
    """Batches in a fixed order: bucket after bucket, `spec.images` random images in all, the same in every variant.

    Captions vary in length where the spec trims them, and where the family's text has no padding of its own.
    """

    def __init__(self, spec: Spec, device: torch.device, exact: bool) -> None:
        self.spec, self.device = spec, device
        self.size = SIZES[spec.size]
        self.geometry = family(self.size.family).default_geometry
        self.objective = objective_of(self.size)
        self.buckets = buckets_of(self.size, exact, spec.buckets)

    def _latent(self, index: int, kind: str, frames: int | None = None) -> Tensor:
        """Latent of a row, or of its size and so many latent `frames`."""
        channels, *sides = self.geometry.latent_shape(*self.bucket(index))
        if frames is not None:
            sides[0] = frames
        source = generator(self.spec.seed, kind, index)
        # A picture is smooth: neighbours alike, so that there is something to learn.
        coarse = torch.randn(channels, *[4] * len(sides), generator=source)
        mode = "bicubic" if len(sides) == 2 else "trilinear"
        return nn.functional.interpolate(coarse[None], sides, mode=mode)[0].to(self.device)

    def bucket(self, index: int) -> tuple[int, ...]:
        """Width and height in px of a row, and the frames of a clip."""
        return self.buckets[index % len(self.buckets)]

    def image_tokens(self, index: int) -> int:
        """Image tokens of a row, those of its control picture included."""
        return self.geometry.image_tokens(*self.bucket(index)) * self.size.pictures

    def caption_tokens(self, index: int) -> int:
        """Real text tokens of a row, those of a control picture that is read included."""
        longest = self.size.text_length
        if not self.spec.captions and not self.size.real_text:
            return longest
        lengths = (longest // 16, longest // 6, longest // 3, longest)
        drawn = int(torch.randint(4, (1,), generator=generator(self.spec.seed, "length", index)))
        return self.size.read + lengths[drawn]

    def _text(self, index: int, kind: str) -> dict[str, Tensor]:
        source = generator(self.spec.seed, "text", index)
        size, row = self.size, {}
        before = family(size.family).text_before
        real = self.caption_tokens(index) - before
        for name, axes in size.text.items():
            shape = [size.text_tokens - before if axis == "text" else axis for axis in axes]
            # Encoders give tokens smaller than pooled vectors.
            tensor = torch.randn(shape, generator=source) * (0.2 if len(shape) > 1 else 1.0)
            kept = tensor[:real] if size.real_text and "text" in axes else tensor
            row[name] = kept.to(self.device, DTYPES[size.dtype])
        if self.spec.captions and not size.real_text:
            row["length"] = torch.tensor(real)
        if size.pictures > 1:
            row["control"] = self._latent(index, f"control {kind}")
        if size.behind:
            # the first one is the picture that the clip starts from, as the row's own first one is
            behind = self._latent(index, f"behind {kind}", size.behind - 1)
            row["behind"] = torch.cat([self._latent(index, kind)[:, :1], behind], dim=1)
            row["between"] = torch.tensor(index % 3)
        return row

    def rows(self, step: int) -> list[int]:
        """The images of a step's batch; all come from one bucket, as a bucketed loader makes them."""
        bucket, rounds = step % len(self.buckets), step // len(self.buckets)
        most = max(1, self.spec.images // len(self.buckets))
        return [bucket + (rounds + row) % most * len(self.buckets) for row in range(self.spec.batch)]

    def batch(self, step: int, kind: str = "train", sigma: float | None = None) -> Batch:
        """Batch of a step."""
        rows = self.rows(step)
        latents = [self._latent(index, kind) for index in rows]
        noise = [
            flow.noise(latent.shape, generator(self.spec.seed, kind, "noise", step, row)).to(self.device)
            for row, latent in enumerate(latents)
        ]
        drawn = torch.rand(len(rows), generator=generator(self.spec.seed, kind, "sigma", step))
        levels = self.objective.fixed(drawn.tolist() if sigma is None else [sigma] * len(rows))
        text = [self._text(index, kind) for index in rows]
        return Batch(latents, text, noise, levels.to(self.device), self.objective)

    def batches(self) -> Iterator[Batch]:
        step = 0
        while True:
            yield self.batch(step)
            step += 1
