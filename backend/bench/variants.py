"""What the bench can measure: variants by name, sizes, and the spec of one measurement."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

ROUTES = ("sdpa", "varlen", "flex", "flash2", "fa3", "fa4")


@dataclass(frozen=True)
class Size:
    """A model size: widths, heads, blocks, and the image tokens and text tokens of a step."""

    heads: int
    head_dim: int
    rope: tuple[int, int, int]
    joint: int
    pooled: int
    double: int
    single: int
    tokens: int
    divisor: int
    text: int
    dtype: str


SIZES = {
    # FLUX.1-dev's widths; 4 + 8 of its 19 + 38 blocks, so that a step fits any card and a bench its time.
    "flux": Size(24, 128, (16, 56, 56), 4096, 768, 4, 8, 4096, 64, 512, "bf16"),
    "flux-whole": Size(24, 128, (16, 56, 56), 4096, 768, 19, 38, 4096, 64, 512, "bf16"),
    # For tests on a CPU.
    "tiny": Size(2, 16, (4, 6, 6), 32, 24, 1, 1, 64, 16, 16, "fp32"),
}


@dataclass(frozen=True)
class Variant:
    """A way to run the same work. compile: None, "blocks" or "model". exact: whether padding is masked exactly."""

    name: str
    mode: str
    route: str = "sdpa"
    compile: str | None = "blocks"
    dynamic: str = "auto"
    exact: bool = True
    limit: int | None = 64
    about: str = ""


def _static(route: str) -> Variant:
    return Variant(
        f"static:{route}", "static", route, dynamic="false", about=f"static tokens, exact, {route} attention"
    )


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("eager", "off", compile=None, about="no compile, native sizes"),
        Variant("whole", "off", compile="model", about="the whole model as one graph, native sizes"),
        Variant("auto", "off", about="per block, native sizes, torch decides what is dynamic"),
        Variant("dynamic", "dynamic", about="per block, token axes marked dynamic"),
        *(_static(route) for route in ROUTES),
        Variant(
            "exact", "exact_buckets", dynamic="false", about="buckets of one or two exact token counts, no padding"
        ),
        Variant(
            "unmasked",
            "static",
            "unmasked",
            dynamic="false",
            exact=False,
            about="static tokens padded without a mask, as in seed 000: not offered, the speed limit for static",
        ),
        Variant(
            "fallback",
            "off",
            compile="blocks",
            dynamic="false",
            limit=8,
            about="compile without static tokens: the recompile limit is hit, the rest is eager (seed 000)",
        ),
    )
}
DEFAULT = ("eager", "auto", "dynamic", "static:sdpa", "static:varlen", "static:flex", "exact", "unmasked")


@dataclass(frozen=True)
class Spec:
    """One measurement, as the worker process gets it.

    checkpointing_kind: of `backend.memory.checkpointing`, empty for block. fused_lora: "on", or empty.
    """

    variant: str
    size: str = "flux"
    double: int = 4
    single: int = 8
    checkpointing: bool = True
    checkpointing_kind: str = ""
    rank: int = 32
    batch: int = 1
    steps: int = 12
    learning_rate: float = 1e-4
    seed: int = 42
    captions: tuple[int, ...] | None = None
    backend: str = "inductor"
    compile_mode: str = "default"
    memory_budget: float | None = None
    autocast: bool = True
    lora_dtype: str = "fp32"
    fused_lora: str = ""
    cache_dir: str = ""
    images: int = 34
    validate: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Spec:
        captions = data.get("captions")
        return cls(**(data | {"captions": tuple(captions) if captions else None}))


def variant(name: str) -> Variant:
    """The variant called `name`; ValueError that lists the known ones."""
    if name not in VARIANTS:
        raise ValueError(f"unknown variant {name!r}; known: {', '.join(VARIANTS)}")
    return VARIANTS[name]
