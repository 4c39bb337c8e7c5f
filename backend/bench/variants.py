"""What the bench can measure: variants by name, sizes, and the spec of one measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

ROUTES = ("sdpa", "varlen", "flex", "flash2", "fa3", "fa4")


@dataclass(frozen=True)
class Size:
    """A model size, as data: what the family's denoiser is made with, and what a step holds.

    layers: blocks of each stack, replaced by `--layers`; each number goes to the config entry of `layer_names` at its
    place, or all together to a single one. config: the rest of the denoiser's config. text: shape of each tensor of a
    caption, "text" standing for `text_length`. tokens: image tokens of a step; divisor: of the bucket sizes, in px.
    """

    family: str
    layers: tuple[int, ...]
    layer_names: tuple[str, ...]
    config: Mapping[str, Any]
    text: Mapping[str, tuple[int | str, ...]]
    tokens: int
    divisor: int
    text_length: int
    dtype: str


def _flux(layers: tuple[int, int]) -> Size:
    config = {
        "in_channels": 64,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 768,
        "guidance_embeds": True,
        "axes_dims_rope": (16, 56, 56),
    }
    text = {"prompt_embeds": ("text", 4096), "pooled": (768,)}
    return Size("flux", layers, _FLUX_LAYERS, config, text, 4096, 64, 512, "bf16")


def _sdxl(layers: tuple[int, ...], width: int, heads: tuple[int, ...], joint: int, tokens: int, dtype: str) -> Size:
    pooled, times = joint * 5 // 8, 256 * width // 320
    config = {
        "sample_size": 128,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "block_out_channels": (width, 2 * width, 4 * width),
        "attention_head_dim": heads,
        "cross_attention_dim": joint,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": times,
        "projection_class_embeddings_input_dim": pooled + 6 * times,
    }
    text = {"prompt_embeds": ("text", joint), "pooled": (pooled,), "time_ids": (6,)}
    return Size("sdxl", layers, ("transformer_layers_per_block",), config, text, tokens, 64, 77, dtype)


_FLUX_LAYERS = ("num_layers", "num_single_layers")
_TINY = {
    "in_channels": 64,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 24,
    "guidance_embeds": True,
    "axes_dims_rope": (4, 6, 6),
}
SIZES = {
    # FLUX.1-dev's widths; 4 + 8 of its 19 + 38 blocks, so that a step fits any card and a bench its time.
    "flux": _flux((4, 8)),
    "flux-whole": _flux((19, 38)),
    # SDXL whole: 1024 x 1024 px is 1024 tokens of its lowest level.
    "sdxl": _sdxl((1, 2, 10), 320, (5, 10, 20), 2048, 1024, "bf16"),
    # For tests on a CPU.
    "tiny-sdxl": _sdxl((1, 1, 1), 32, (1, 2, 4), 64, 64, "fp32"),
    "tiny": Size(
        "flux", (1, 1), _FLUX_LAYERS, _TINY, {"prompt_embeds": ("text", 32), "pooled": (24,)}, 64, 16, 16, "fp32"
    ),
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
    """

    variant: str
    size: str = "flux"
    checkpointing: bool = True
    checkpointing_kind: str = ""
    layers: tuple[int, ...] = option((), "blocks of each stack, such as 4,8; the size's own when left out", "layers {}")
    rank: int = option(32, "rank of the LoRA", "rank {}")
    batch: int = option(1, "rows of a step", "batch {}")
    steps: int = option(17, "timed steps, after one pass over the buckets", "{} steps")
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
    swap: int = option(0, "blocks whose weights are streamed from the host", "swap {}")
    swap_ring: int = option(2, "buffers on the device for swapped blocks", "ring {}")
    disable_linear: str = option(
        "off",
        "linear layers left out of the graphs; auto is on under swap",
        "linear layers out {}",
        ("auto", "on", "off"),
    )
    cache_dir: str = ""
    images: int = 34
    validate: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Spec:
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})

    @property
    def stacks(self) -> tuple[int, ...]:
        """Blocks of each stack."""
        return self.layers or SIZES[self.size].layers


OPTIONS = {each.name: each for each in fields(Spec) if "label" in each.metadata}
SETTINGS = ("size", "checkpointing_kind", *OPTIONS)


def variant(name: str) -> Variant:
    """The variant called `name`; ValueError that lists the known ones."""
    if name not in VARIANTS:
        raise ValueError(f"unknown variant {name!r}; known: {', '.join(VARIANTS)}")
    return VARIANTS[name]
