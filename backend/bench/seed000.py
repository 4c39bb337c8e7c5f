"""Defines the protocol seed000: settings and variants that measure static tokens on FLUX.

r 32, lr 5e-5, batch 2, 182 steps, seed 42, gradient checkpointing; plain, compile that falls back to eager, static
tokens with flash-attn 2, static tokens with FlashAttention 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.bench.variants import Spec

STEPS = 182
TITLES = {
    "eager": "plain",
    "fallback": "compile (eager fallback)",
    "static:flash2": "compile, static tokens, flash-attn 2",
    "static:fa4": "compile, static tokens, FlashAttention 4",
    "static:sdpa": "compile, static tokens, SDPA",
}


def specs(general: Spec, names: Sequence[str]) -> list[Spec]:
    """The runs of TITLES that are named, with the protocol's settings and the sizes of `general`.

    ValueError for a name that is none of them.
    """
    from backend.bench.sizes import SIZES
    from backend.bench.work import buckets_of

    unknown = [name for name in names if name not in TITLES]
    if unknown:
        raise ValueError(f"--variants has {', '.join(unknown)}; the protocol seed000 has {', '.join(TITLES)}")
    warm = len(buckets_of(SIZES[general.size], exact=False))
    base = replace(
        general,
        checkpointing=True,
        rank=32,
        batch=2,
        learning_rate=5e-5,
        seed=42,
        # 182 steps in all: the first pass over the buckets is part of them.
        steps=STEPS - warm,
        images=4 * warm,
        validate=True,
    )
    return [replace(base, variant=name) for name in names]
