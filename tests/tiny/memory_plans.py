"""Builds what memory is estimated of: FLUX.1-dev by its shapes alone, its settings and the work of a run."""

from __future__ import annotations

from functools import cache
from typing import Any

from backend.config.load import parse
from backend.config.schema import Config
from backend.families.flux.facts import FACTS
from backend.plan.memory.activations import Work
from backend.plan.memory.parts import Parts, denoiser_of
from backend.plan.memory.work import RunWork

WORK = RunWork(Work(1, 4096, 512), 1024 * 1024, sampling=Work(1, 4096, 512), sample_pixels=1024 * 1024)


@cache
def flux_dev() -> Parts:
    """FLUX.1-dev at full size: 11.9 billion numbers, T5 XXL and CLIP L, 83.8 million numbers in the VAE."""
    from tests.tiny.kept import empty_flux

    shapes = {name: tuple(p.shape) for name, p in empty_flux(19, 38).named_parameters()}
    layer = {"q": (4096, 4096), "k": (4096, 4096), "v": (4096, 4096), "o": (4096, 4096)}
    layer |= {"wi_0": (10240, 4096), "wi_1": (10240, 4096), "wo": (4096, 10240)}
    t5 = {f"encoder.block.{n}.{name}.weight": shape for n in range(24) for name, shape in layer.items()}
    texts = {"text_encoder_2": {"shared.weight": (32128, 4096), **t5}, "text_encoder": {"w": (123_060_480,)}}
    return Parts(denoiser_of(shapes, FACTS), shapes, texts, 83_819_683, 128)


def settings(**changes: dict[str, Any]) -> Config:
    loaded = parse({"training": {"gradient_checkpointing": True}, **changes})
    assert loaded.config is not None, loaded.problems
    return loaded.config
