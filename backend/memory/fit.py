"""Whether a model's weights fit the card, as arithmetic: told before anything loads, with the sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backend.config.problems import Problem
from backend.models.base import Base
from backend.models.spec import Part
from backend.runs.files import human_bytes

RESERVE = 700_000_000
"""Bytes kept back for what no weight accounts for: cuBLAS and cuDNN workspaces, kernels, fragmentation."""

TRAINED = 4 + 4 + 8
"""Bytes a trained LoRA parameter takes: itself and its gradient in float32, and Adam's two float32 averages."""


@dataclass(frozen=True)
class Need:
    """One stage of the run and what must be on the card together, bytes by name."""

    stage: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts and the reserve."""
        return sum(self.parts.values()) + RESERVE


def weight_bytes(base: Base | Path, part: Part, width: int) -> int:
    """Bytes of the weights of `part` held with `width` bytes a number, whatever they are kept in on disk."""
    shapes = (shape for _, shape in Base.at(base).tensors(part).values())
    return sum(math.prod(shape) for shape in shapes) * width


def stages(weights: Mapping[str, int], text_parts: tuple[str, ...], denoiser: str, trained: int) -> list[Need]:
    """The stages of a run that each hold weights on the card, one after the other.

    weights: part -> bytes on the card (the VAE is called ``vae``). trained: LoRA parameters.
    Activations are left out: they depend on kernels and checkpointing, so that this only refuses what can't work.
    """
    text = {part: weights[part] for part in text_parts if part in weights}
    return [
        Need("encoding captions", text),
        Need("encoding pictures", {"vae": weights.get("vae", 0)}),
        Need("training", {denoiser: weights[denoiser], "LoRA and optimizer": trained * TRAINED}),
    ]


def problems(needs: list[Need], free: int, total: int, device: str) -> list[Problem]:
    """An error for each stage that needs more than the `free` bytes of the card; sizes of all parts are told."""
    found = []
    for need in needs:
        if need.total <= free:
            continue
        sizes = ", ".join(f"{name} {human_bytes(size)}" for name, size in need.parts.items())
        text = (
            f"The model does not fit the card: {need.stage} needs {human_bytes(need.total)} ({sizes}, "
            f"{human_bytes(RESERVE)} in reserve), and {device} has {human_bytes(free)} free of {human_bytes(total)}"
        )
        if need.total <= total:
            remedy = "Close other programs that use the card."
        else:
            remedy = "Use a card with more memory, a smaller base model, or weight_dtype bf16."
        found.append(Problem("model.base_model", None, text, remedy))
    return found
