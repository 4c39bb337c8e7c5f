"""Defines what the bench can measure: variants by name, and the spec of one measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from backend.bench.clips import Clip, parse_clips
from backend.bench.sizes import SIZES

PRODUCTS = (
    "small",
    "small-rowwise",
    "small-fused",
    "small-unrotated",
    "fast",
    "fast-rowwise",
    "fast-unrotated",
)
"""Names of `backend.memory.product_ways.WAYS`, which needs torch; not every format has each."""

ROUTES = ("sdpa", "varlen", "flex", "flash2", "fa3", "fa4")


@dataclass(frozen=True)
class Variant:
    """A way to run the same work. compile: None, "blocks" or "model". exact: whether padding is masked exactly.

    plain_forward: diffusers' own forward and attention, as other trainers run them, in place of ours.
    """

    name: str
    mode: str
    route: str = "sdpa"
    compile: str | None = "blocks"
    dynamic: str = "auto"
    exact: bool = True
    limit: int | None = 64
    about: str = ""
    plain_forward: bool = False


def _static(route: str) -> Variant:
    return Variant(
        f"static:{route}", "static", route, dynamic="false", about=f"static tokens, exact, {route} attention"
    )


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("eager", "off", compile=None, about="no compile, native sizes"),
        Variant(
            "diffusers", "off", compile=None, about="no compile, native sizes, diffusers' forward", plain_forward=True
        ),
        Variant(
            "diffusers:auto",
            "off",
            about="diffusers' forward, per block, torch decides what is dynamic: as musubi-tuner compiles",
            plain_forward=True,
        ),
        Variant("whole", "off", compile="model", about="the whole model as one graph, native sizes"),
        Variant("auto", "off", about="per block, native sizes, torch decides what is dynamic"),
        Variant("dynamic", "dynamic", about="per block, token axes marked dynamic"),
        *(_static(route) for route in ROUTES),
        Variant(
            "static:auto",
            "static",
            "auto",
            dynamic="false",
            about="static tokens, exact, the attention that a probe measures fastest, as runs choose it",
        ),
        Variant(
            "static:noextras",
            "static",
            "noextras",
            dynamic="false",
            about="the same among PyTorch's own kernels alone",
        ),
        Variant(
            "exact", "exact_buckets", dynamic="false", about="buckets of one or two exact token counts, no padding"
        ),
        Variant(
            "unmasked",
            "static",
            "unmasked",
            dynamic="false",
            exact=False,
            about="static tokens padded without a mask: not exact and not offered; the speed limit for static",
        ),
        Variant(
            "fallback",
            "off",
            compile="blocks",
            dynamic="false",
            limit=8,
            about="compile without static tokens: the recompile limit is hit, the rest is eager",
        ),
    )
}
VIDEO = ("eager", "diffusers:auto", "static:sdpa", "static:fa4", "exact")
"""What a video model is measured with: each variant takes seconds a step."""
DEFAULT = ("eager", "auto", "dynamic", "static:sdpa", "static:varlen", "static:flex", "exact", "unmasked")


def option(default: Any, help: str, label: str = "", choices: Sequence[str] = ()) -> Any:
    """A field of `Spec` that two measurements of one variant may differ in.

    It becomes a flag of the command, a column of the record, part of what tells rows apart, and, with a `label` ("{}"
    stands for the value), words behind the variant's name wherever it is not the default. The default's type decides
    how the flag is read: False makes a switch, True on or off, () numbers by comma, None a fraction.
    """
    return field(default=default, metadata={"help": help, "label": label, "choices": tuple(choices)})


@dataclass(frozen=True)
class Spec:
    """One measurement, as the worker process gets it. Everything made with `option` is also a flag and a column.

    layers: empty for the size's own. checkpointing_kind: of `backend.memory.checkpointing`, empty for block.
    gated: the process waits for its turn before its timed steps, beside others. profile: some more steps are profiled.
    """

    variant: str
    size: str = "flux"
    checkpointing: bool = True
    checkpointing_kind: str = ""
    layers: tuple[int, ...] = option((), "blocks of each stack, such as 4,8; the size's own when left out", "layers {}")
    clips: str = option(
        "", "clip sizes by comma, such as 832x480x81,832x480x49; the size's own when left out", "clips {}"
    )
    rank: int = option(32, "rank of the LoRA", "rank {}")
    batch: int = option(1, "rows of a step", "batch {}")
    steps: int = option(
        17, "timed steps, after one pass over the buckets; of a video model 2 passes over its sizes", "{} steps"
    )
    learning_rate: float = option(1e-4, "learning rate of AdamW")
    seed: int = option(42, "of weights, noise and data")
    captions: tuple[int, ...] = option(
        (), "caption buckets by comma, such as 64,128,256,512, with captions of varying length", "captions {}"
    )
    backend: str = option("inductor", "backend of torch.compile", "backend {}")
    compile_mode: str = option("default", "mode of torch.compile, such as max-autotune-no-cudagraphs", "{}")
    memory_budget: float | None = option(
        None, "activation memory budget of the partitioner, 0 to 1", "memory budget {}"
    )
    autocast: bool = option(True, "bf16 autocast, as training has it", "no autocast")
    lora_dtype: str = option("fp32", "format of the LoRA's weights", "LoRA {}", ("fp32", "bf16"))
    fused_lora: bool = option(False, "one product for the LoRA layers of one input", "fused LoRA")
    base_quantization: str = option("none", "format of the frozen weights", "{}", ("none", "fp8", "int8", "nf4"))
    base_compute: str = option("bf16", "what quantised layers multiply in", "{} products", ("bf16", "int8", "fp8"))
    base_products: str = option(
        "small", "what 8-bit products keep and by which kernels they are computed", "{}", PRODUCTS
    )
    full: str = option(
        "",
        "optimizer of all the model's weights, stepped in the backward pass, in place of a LoRA",
        "full, {}",
        ("", "adafactor", "adamw", "adamw8bit"),
    )
    swap: int = option(0, "blocks whose weights are streamed from the host", "swap {}")
    swap_ring: int = option(2, "buffers on the device for swapped blocks", "ring {}")
    disable_linear: str = option(
        "off",
        "linear layers left out of the graphs; auto is off",
        "linear layers out {}",
        ("auto", "on", "off"),
    )
    warm_up: bool = option(True, "ready the compiler while the model loads, as runs do", "no warm-up")
    cuda_graphs: bool = option(False, "CUDA graphs of whole training passes", "CUDA graphs")
    cache_dir: str = ""
    gated: bool = False
    profile: bool = False
    images: int = 34
    validate: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Spec:
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})

    @property
    def recomputes(self) -> bool:
        """Whether checkpointing is left to the compiled blocks' own graphs where they can."""
        return self.checkpointing and self.checkpointing_kind in ("auto", "attention")

    @property
    def stacks(self) -> tuple[int, ...]:
        """Blocks of each stack."""
        return self.layers or SIZES[self.size].layers

    @property
    def buckets(self) -> tuple[Clip, ...]:
        """Clip sizes of a video model; none for a model of pictures."""
        return parse_clips(self.clips) or SIZES[self.size].clips


OPTIONS = {each.name: each for each in fields(Spec) if "label" in each.metadata}
SETTINGS = ("size", "checkpointing_kind", *OPTIONS)


def variant(name: str) -> Variant:
    """The variant called `name`; ValueError that lists the known ones."""
    if name not in VARIANTS:
        raise ValueError(f"unknown variant {name!r}; known: {', '.join(VARIANTS)}")
    return VARIANTS[name]


def requested(text: str) -> tuple[Variant, dict[str, Any]]:
    """A variant and the fields of its spec that differ, as in ``static:fa4+cuda_graphs+lora_dtype=bf16+profile``.

    So rows of one command, timed side by side, may differ in any option. ValueError for a name or value that means
    nothing.
    """
    name, *parts = text.split("+")
    changes: dict[str, Any] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key == "profile":
            changes[key] = True
        elif key in OPTIONS:
            changes[key] = _as(OPTIONS[key], value)
        else:
            raise ValueError(f"{text!r} changes {key!r}, which is no option; known: profile, {', '.join(OPTIONS)}")
    return variant(name), changes


def _as(each: Any, value: str) -> Any:
    """The text of an option's value as a spec holds it."""
    default, choices = each.default, each.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"{each.name} is {value!r}; it must be one of {', '.join(choices)}")
    if isinstance(default, bool):
        if value not in ("", "on", "off"):
            raise ValueError(f"{each.name} is {value!r}; it must be on or off")
        return value != "off"
    if isinstance(default, tuple):
        return tuple(int(number) for number in value.split("-"))
    kind = float if default is None else type(default)
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{each.name} is {value!r}; it must be a number") from None
