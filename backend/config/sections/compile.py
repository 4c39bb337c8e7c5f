"""Declares [compile]: torch.compile and the shapes it receives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from backend.config.declare import Section, optional_path, setting
from backend.config.sections.values import block_range, clean_path, known_or_other, rising

BACKENDS = ("inductor", "aot_eager", "eager", "cudagraphs")

_Backend = Annotated[str, AfterValidator(known_or_other(BACKENDS))]
_Tokens = Annotated[int, Field(ge=1, le=4096)]


class BlockChoice(Section):
    """One row of [[compile.compile_blocks]]."""

    blocks: Annotated[str, AfterValidator(block_range)] = setting(
        label="Blocks",
        help="A block class and which of its blocks, counted from 0: double:0-3, single:5, double:0,2,6-9, or "
        "double for all of them.",
    )
    backend: _Backend | None = setting(
        None,
        suggestions=BACKENDS,
        label="Backend",
        help="Compile backend of these blocks. Empty: the compile backend above.",
    )
    compile: bool = setting(
        True,
        label="Compile",
        help="Turn it off to run these blocks without compile (eager).",
    )


class CompileSection(Section):
    """What is compiled, how, and how many different shapes reach it."""

    compile: bool = setting(
        True,
        label="Compile the model",
        help="Compiles the model's blocks into fast kernels with torch.compile. On a large GPU a step becomes about "
        "1.4 to 1.5 times as fast, after a compile of about half a minute at the start. Without a compiler on "
        "the machine the run says so and trains without compile.",
        aliases=("torch_compile", "use_torch_compile", "compile_model", "enable_compile"),
        basic=True,
    )
    compile_profile: Literal["custom", "balanced", "max_speed"] = setting(
        "custom",
        label="Compile profile",
        help="Sets backend, mode, dynamic shapes, full graph and recompile limit with one choice. custom: as they "
        "are set below; the defaults compile least. balanced: exact kernels for each shape. max_speed: also "
        "times several kernels for each matrix product, which takes minutes at the start; for long runs.",
        aliases=("compilation_profile",),
    )
    compile_backend: _Backend = setting(
        "inductor",
        suggestions=BACKENDS,
        label="Compile backend",
        help="Compiler behind torch.compile. inductor makes the fast kernels. aot_eager and eager only trace the "
        "model; use them to find errors.",
        aliases=("dynamo_backend", "torch_compile_backend", "inductor_backend"),
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = setting(
        "default",
        label="Compile mode",
        help="default compiles fastest. max-autotune-no-cudagraphs tries several kernels for each matrix product: a "
        "longer compile, sometimes faster steps. reduce-overhead is the same as default, and max-autotune the "
        "same as max-autotune-no-cudagraphs, but with training passes recorded as with cuda_graphs = on (where "
        "cuda_graphs is auto).",
        aliases=("dynamo_mode", "torch_compile_mode"),
    )
    compile_dynamic: Literal["auto", "true", "false"] = setting(
        "auto",
        label="Dynamic shapes",
        help="How torch treats changing shapes, in the shape modes static and off. false compiles each shape "
        "separately. true compiles once for all shapes where it can. auto starts with the first way and "
        "changes to the second when a shape changes.",
        aliases=("dynamo_use_dynamic", "torch_compile_dynamic", "dynamo_dynamic"),
    )
    compile_fullgraph: bool = setting(
        False,
        label="Full graph",
        help="A graph break in a block becomes an error instead of a slower run. For those who change the model's "
        "code; the Run tab shows graph breaks in any case.",
        aliases=("dynamo_use_fullgraph", "torch_compile_fullgraph", "fullgraph"),
        advanced=True,
    )
    compile_cache_size_limit: int | None = setting(
        None,
        ge=1,
        le=10000,
        unit="graphs",
        label="Recompile limit",
        help="How many graphs a block class may have before torch stops compiling and runs eagerly. Empty: what the "
        "shape plan needs. Set it only to allow more.",
        aliases=("dynamo_cache_size_limit", "cache_size_limit", "recompile_limit", "torch_compile_cache_size_limit"),
        advanced=True,
    )
    shape_mode: Literal["auto", "static", "exact_buckets", "dynamic", "off"] = setting(
        "auto",
        label="Shape mode",
        help="How images of many sizes need only a few graphs. auto: static, or exact_buckets for a family that "
        "can't use static (SDXL, SD 1.5); the plan shows which. static: pads every image to one token count, "
        "masked exactly; one graph, the same result. exact_buckets: bucket sizes with only one or two token "
        "counts; no padding, a little more cropping. dynamic: compiles once for a range of sizes. off: keeps "
        "the sizes as they are; one graph for each, or two for all with dynamic shapes at auto.",
        aliases=("static_shapes", "padding_mode"),
    )
    static_token_count: int | None = setting(
        None,
        ge=1,
        le=1_000_000,
        unit="tokens",
        label="Static token count",
        help="Image tokens that the shape mode static pads to. Empty: the largest count in the plan (4096 for 1024 "
        "x 1024 with FLUX). Images with more tokens are scaled down to fit, and the plan shows it.",
        aliases=("static_tokens", "static_image_tokens"),
        advanced=True,
    )
    caption_buckets: Annotated[list[_Tokens], AfterValidator(rising)] | None = setting(
        None,
        min_length=1,
        unit="tokens",
        label="Caption buckets",
        help="Text lengths that captions are trimmed to, such as [64, 128, 256, 512]: less work for short captions, "
        "one graph for each length. Empty is off. Leave it off for FLUX: it attends to its padding, so "
        "trimming changes the result.",
        aliases=("text_buckets", "caption_length_buckets"),
        advanced=True,
    )
    attention: Literal["auto", "sdpa", "flash2", "fa3", "fa4", "varlen", "flex"] = setting(
        "auto",
        label="Attention (kernel)",
        help="Kernel that computes attention; the result is the same. auto: a run of at least 200 steps measures "
        "once which is fastest on this GPU for its size, in some seconds; later runs and a resume use the answer. "
        "sdpa: PyTorch's own, runs everywhere. varlen and flex: PyTorch's own for static shapes. flash2, fa3, fa4: "
        "the flash-attn packages, if they are installed. The doctor names what is missing.",
        aliases=("attn_mode", "sdpa", "flash_attn", "xformers", "attention_mechanism", "attention_backend"),
    )
    compile_scope: Literal["blocks", "model"] = setting(
        "blocks",
        label="Compile scope",
        help="blocks compiles each repeated block once and uses it again: faster to start and as fast to run. model "
        "compiles the whole model at once, and works only without gradient checkpointing.",
        aliases=("compile_whole_model", "regional_compilation", "compile_repeated_blocks"),
        advanced=True,
    )
    disable_linear: Literal["auto", "on", "off"] = setting(
        "auto",
        label="Linear layers not compiled",
        help="on leaves linear layers out of the compiled graphs, as other trainers do with block swap: each layer "
        "is a graph break. auto and off compile them, with block swap too: swapped weights keep their "
        "addresses here. On an H100 with 8 of 12 blocks swapped, a step took 166 ms with off (2 graphs) and "
        "340 ms with on (17 graphs and 20 breaks).",
        aliases=("disable_linear_from_compile", "compile_disable_linear"),
        advanced=True,
    )
    cuda_graphs: Literal["auto", "on", "off"] = setting(
        "auto",
        label="CUDA graphs",
        help="Records the forward and backward pass of each image size once and replays it, so that the CPU need "
        "not start thousands of kernels in each step: SDXL takes a quarter of the time on an H200. auto times "
        "some passes first, and records where starting kernels takes a good part of a pass, the first replay is "
        "faster and enough memory is free. The first step of each size is slower. Works with and without "
        "compile; needs an NVIDIA GPU.",
        aliases=("cudagraphs", "use_cuda_graphs", "cuda_graph"),
    )
    compile_blocks: list[BlockChoice] | None = setting(
        None,
        min_length=1,
        label="Compile settings of single blocks",
        help="Exceptions for some blocks: do not compile them, or use another backend. Use it to find the block "
        "that a compiler fails on.",
        aliases=("compile_block_selection",),
        advanced=True,
    )
    compile_cache_dir: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Compile cache folder",
        help="Folder for compiled kernels, so that the next start takes seconds. Empty: a short folder that "
        "Monotile chooses. Choose one without spaces.",
        aliases=("torchinductor_cache_dir", "inductor_cache_dir"),
        advanced=True,
    )
