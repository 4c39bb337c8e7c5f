"""Declares [compile]: torch.compile and the shapes it receives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from backend.config.declare import Section, setting
from backend.config.sections.values import block_range, clean_path, known_or_other, rising

BACKENDS = ("inductor", "aot_eager", "eager", "cudagraphs")

_Backend = Annotated[str, AfterValidator(known_or_other(BACKENDS))]
_Tokens = Annotated[int, Field(ge=1, le=4096)]


class BlockChoice(Section):
    """One row of [[compile.compile_blocks]]."""

    blocks: Annotated[str, AfterValidator(block_range)] = setting(
        label="Blocks",
        help="A block class and which of its blocks, counted from 0: double:0-3, single:5, double:0,2,6-9, or "
        "double for all.",
    )
    backend: _Backend | None = setting(
        None,
        suggestions=BACKENDS,
        label="Backend",
        help="Compile backend of these blocks. Empty: the one set above.",
    )
    compile: bool = setting(
        True,
        label="Compile",
        help="Off leaves these blocks eager.",
    )


class CompileSection(Section):
    """What is compiled, how, and how many different shapes reach it."""

    compile: bool = setting(
        True,
        label="Compile the model",
        help="Turns the model's blocks into fused kernels with torch.compile. On a large card steps become about 1.4 "
        "to 1.5 times as fast, after a compile of about half a minute at the start. Without a compiler on the machine "
        "the run says so and trains eagerly.",
        aliases=("torch_compile", "use_torch_compile", "compile_model", "enable_compile"),
    )
    compile_profile: Literal["custom", "balanced", "max_speed"] = setting(
        "custom",
        label="Profile",
        help="Sets backend, mode, dynamic shapes, whole graphs and recompile limit in one word. custom: as they stand "
        "below; the defaults compile least. balanced: one exact kernel set a shape. max_speed: also times several "
        "kernels for each matrix product, minutes at the start, for long runs.",
        aliases=("compilation_profile",),
    )
    compile_backend: _Backend = setting(
        "inductor",
        suggestions=BACKENDS,
        label="Backend",
        help="Compiler behind torch.compile. inductor makes the fast kernels; aot_eager and eager only trace, for "
        "finding faults.",
        aliases=("dynamo_backend", "torch_compile_backend", "inductor_backend"),
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = setting(
        "default",
        label="Mode",
        help="default compiles soonest. max-autotune-no-cudagraphs tries several kernels for each product: a "
        "longer compile, at times faster steps. reduce-overhead is default and max-autotune is "
        "max-autotune-no-cudagraphs, both with training passes recorded as by cuda_graphs = on, where cuda_graphs is "
        "auto.",
        aliases=("dynamo_mode", "torch_compile_mode"),
    )
    compile_dynamic: Literal["auto", "true", "false"] = setting(
        "auto",
        label="Dynamic shapes",
        help="What torch is told about changing shapes, in the shape modes static and off: false compiles each "
        "shape for itself, true compiles once for all where it can, auto starts with the first and turns to "
        "the second when a shape changes.",
        aliases=("dynamo_use_dynamic", "torch_compile_dynamic", "dynamo_dynamic"),
    )
    compile_fullgraph: bool = setting(
        False,
        label="Whole graphs only",
        help="Makes a break in a block's graph an error instead of a slower run. For those who change the model's "
        "code; the panel shows breaks anyway.",
        aliases=("dynamo_use_fullgraph", "torch_compile_fullgraph", "fullgraph"),
        advanced=True,
    )
    compile_cache_size_limit: int | None = setting(
        None,
        ge=1,
        le=10000,
        unit="graphs",
        label="Recompile limit",
        help="How many graphs a block class may have before torch falls back to eager. Empty takes what the shape plan "
        "needs; set it only to allow more.",
        aliases=("dynamo_cache_size_limit", "cache_size_limit", "recompile_limit", "torch_compile_cache_size_limit"),
        advanced=True,
    )
    shape_mode: Literal["auto", "static", "exact_buckets", "dynamic", "off"] = setting(
        "auto",
        label="Shape mode",
        help="How pictures of many sizes become few graphs. auto takes static, or exact_buckets for a family that "
        "can't have it (SDXL, SD 1.5), and the plan names it. static pads every picture to one token count, masked "
        "exactly: one graph, same result. exact_buckets makes bucket sizes that fall on one or two token "
        "counts: no padding, a little more cropping. dynamic compiles once for a range of sizes. off leaves "
        "sizes as they are: one graph each, or two for all of them with dynamic shapes at auto.",
        aliases=("static_shapes", "padding_mode"),
    )
    static_token_count: int | None = setting(
        None,
        ge=1,
        le=1_000_000,
        unit="tokens",
        label="Static token count",
        help="Image tokens that static pads to. Empty takes the largest count in the plan (4096 for 1024 x 1024 "
        "with FLUX). Pictures with more are scaled down to fit, and the plan says so.",
        aliases=("static_tokens", "static_image_tokens"),
        advanced=True,
    )
    caption_buckets: Annotated[list[_Tokens], AfterValidator(rising)] | None = setting(
        None,
        min_length=1,
        unit="tokens",
        label="Caption buckets",
        help="Text lengths that captions are trimmed to, such as [64, 128, 256, 512]: less work for short "
        "captions, one graph for each length. Empty is off, which is right for FLUX: it attends to its "
        "padding, so trimming changes what it sees.",
        aliases=("text_buckets", "caption_length_buckets"),
        advanced=True,
    )
    attention: Literal["auto", "sdpa", "flash2", "fa3", "fa4", "varlen", "flex"] = setting(
        "auto",
        label="Attention",
        help="Kernel that computes attention; the result is the same. auto takes the fastest that this machine "
        "has. sdpa: torch's own, runs everywhere. varlen and flex: torch's own for static shapes. flash2, "
        "fa3, fa4: the flash-attn packages, if installed. The doctor names what is missing.",
        aliases=("attn_mode", "sdpa", "flash_attn", "xformers", "attention_mechanism", "attention_backend"),
    )
    compile_scope: Literal["blocks", "model"] = setting(
        "blocks",
        label="Scope",
        help="blocks compiles each repeated block once and reuses it, which is faster to start and as fast to run. "
        "model compiles everything as one, and works only without gradient checkpointing.",
        aliases=("compile_whole_model", "regional_compilation", "compile_repeated_blocks"),
        advanced=True,
    )
    disable_linear: Literal["auto", "on", "off"] = setting(
        "auto",
        label="Linear layers eager",
        help="on keeps linear layers out of the compiled graphs, as other trainers do under block swap: each layer is "
        "a graph break. auto and off compile them, under swap too: swapped weights keep their addresses here. On an "
        "H100 a step with 8 of 12 blocks swapped took 166 ms with off, in 2 graphs, and 340 ms with on, in 17 graphs "
        "with 20 breaks.",
        aliases=("disable_linear_from_compile", "compile_disable_linear"),
        advanced=True,
    )
    cuda_graphs: Literal["auto", "on", "off"] = setting(
        "auto",
        label="CUDA graphs",
        help="Records the forward and backward pass of each picture size once and replays it, which spares the "
        "processor the thousands of kernels that it starts in a step: SDXL takes a fifth of the time on an H200. auto "
        "times three steps first and records where launching is most of a step, the first replay is faster and memory "
        "is left for it. The second step of each size is slower. With or without compile; needs an NVIDIA card.",
        aliases=("cudagraphs", "use_cuda_graphs", "cuda_graph"),
    )
    compile_blocks: list[BlockChoice] | None = setting(
        None,
        min_length=1,
        label="Single blocks",
        help="Exceptions for some blocks: leave them eager or give them another backend. For finding the block that a "
        "compiler fails on.",
        aliases=("compile_block_selection",),
        advanced=True,
    )
    compile_cache_dir: Annotated[str, AfterValidator(clean_path)] | None = setting(
        None,
        kind="path",
        min_length=1,
        label="Compile cache folder",
        help="Where compiled kernels are kept, so that the next start takes seconds. Empty takes a short folder of "
        "our own; choose one without spaces.",
        aliases=("torchinductor_cache_dir", "inductor_cache_dir"),
        advanced=True,
    )
