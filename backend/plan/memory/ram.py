"""Computes the RAM that a run takes at its worst moment, by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from backend.plan.memory.parts import Parts
from backend.plan.memory.settings import MemorySettings
from backend.plan.memory.weight_bytes import total_bytes

if TYPE_CHECKING:
    from backend.plan.memory.estimate_result import Stage

PROCESS_CUDA, PROCESS_CPU = 2_600_000_000, 480_000_000
"""A trainer without a model: Python, torch and its libraries, on a GPU CUDA's with them."""

COMPILER = 200_000_000
"""What torch.compile adds to the trainer's own process, most of it at a cold start; its workers' memory is theirs."""

LOADER = 200_000_000
"""Batches ahead, latents and captions being read."""


def needed(parts: Parts, settings: MemorySettings, stages: Sequence[Stage], on_gpu: bool) -> Mapping[str, int]:
    """Part -> bytes. On a CPU the models and all they compute with are in RAM; on a GPU what passes through it."""
    compiler = COMPILER if settings.way.compiled else 0
    blocks = settings.swapped(parts)
    swapped = {"swapped_weights": sum(blocks)} if blocks else {}
    state = sum(settings.swapped_state(parts))
    swapped |= {"swapped_state": state} if state else {}
    if settings.experts:
        swapped["second_expert"] = total_bytes(
            parts.shapes, settings.base_format, settings.weight_width, settings.copies
        )
    if not on_gpu:
        worst = max(stages, key=lambda stage: stage.allocated)
        models = {name: size for name, size in worst.parts.items() if size and name != "workspace"}
        loading = {"loading": max(blocks)} if blocks else {}
        return {"process": PROCESS_CPU + compiler, **models, **swapped, **loading}
    parts_in_ram = {"process": PROCESS_CUDA + compiler, "loader": LOADER, **swapped}
    offloaded = sum(stage.host.get("activations", 0) for stage in stages)
    if offloaded:
        parts_in_ram["activations"] = offloaded
    if any(stage.name == "decode_samples" for stage in stages):
        parts_in_ram["vae"] = parts.vae * settings.weight_width
        if settings.turns and not settings.full:
            whole = next(stage for stage in stages if stage.name == "train")
            parts_in_ram["denoiser_while_decoding"] = whole.parts["weights"] + whole.parts.get("weight_copies", 0)
    # One tensor is read at a time, copied once while it is cast; a swapped block is copied once as a whole.
    parts_in_ram["loading"] = max([parts.denoiser.largest * 2 * max(2, settings.weight_width), *blocks])
    return parts_in_ram
