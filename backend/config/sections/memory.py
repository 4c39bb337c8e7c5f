"""Declares [memory]: what saves GPU memory, and what it costs."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


class MemorySection(Section):
    """How a base model that is larger than the GPU's memory is trained on that GPU."""

    blocks_to_swap: int = setting(
        0,
        ge=0,
        le=1000,
        unit="blocks",
        label="Blocks to swap",
        help="Keeps the weights of this many blocks in RAM and copies them to the GPU just before they are "
        "needed, in the forward and in the backward pass. 0 keeps all blocks on the GPU. The loss stays the "
        "same. A step can't be shorter than the copy; the log shows its time. In full fine-tuning what was "
        "trained goes back to RAM, with the optimizer's state, and fused_backward is needed.",
        aliases=("block_swap", "num_blocks_to_swap"),
        basic=True,
    )
    swap_ring: int = setting(
        2,
        ge=2,
        le=16,
        unit="buffers",
        label="Swap buffers on the GPU",
        help="Buffers on the GPU for swapped blocks, each as large as the largest block: one is in use while the "
        "others are filled. More buffers help with blocks of different sizes, and need more memory.",
        aliases=("swap_ring_size", "swap_prefetch"),
        advanced=True,
    )
    swap_pinned_limit_gb: float | None = setting(
        None,
        ge=0,
        le=4096,
        unit="GB",
        label="Pinned memory limit",
        help="How much of the swapped weights may use pinned RAM, which the GPU reads several times as fast as "
        "normal RAM, and which no other program can use during the run. Empty: 80 % of the RAM, or half of it "
        "on Windows, which allows no more. The rest is copied from normal RAM, and the log says so.",
        aliases=("pinned_memory_limit", "max_pinned_memory_gb"),
        advanced=True,
    )
    vram_limit_gb: float | None = setting(
        None,
        ge=1,
        le=4096,
        unit="GB",
        label="VRAM limit",
        help="The most VRAM that the run may use; the rest stays free for the desktop and other programs. A run "
        "that needs more stops as if the GPU had only this much. Empty: all that is free.",
        aliases=("vram_limit", "max_vram", "gpu_memory_fraction", "memory_fraction"),
    )
    offload_by_turns: Literal["auto", "on", "off"] = setting(
        "auto",
        label="Offload denoiser during decoding",
        help="While a sample image is decoded, the denoiser's weights move to RAM, so that the VAE can use the "
        "whole GPU. auto: only where both would not fit together. on: always. off: never. Encoders always take "
        "turns: each leaves the GPU before the next one is loaded.",
        aliases=("cpu_offload", "model_offload", "sequential_offload", "lowram_sampling", "offload_denoiser"),
        advanced=True,
    )
    vae_tiling: Literal["auto", "on", "off"] = setting(
        "auto",
        label="VAE tiling",
        help="Encodes and decodes large images in overlapping tiles: much less memory, with very small differences "
        "at the edges of tiles. auto: only where a whole image would not fit on the GPU.",
        aliases=("enable_vae_tiling", "vae_tiled", "tiled_vae", "vae_spatial_tile_sample_min_size"),
        advanced=True,
    )
    checkpointing_kind: Literal["auto", "block", "attention", "offload", "selective"] = setting(
        "auto",
        label="Checkpointing type",
        help="How gradient checkpointing works. block: computes every block a second time. auto: the same inside "
        "the compiled graphs, without what no gradient needs; as little memory, less time. Where inductor does "
        "not compile the blocks, linear layers are not compiled or there is dropout, auto is block. attention: the "
        "results of attention are kept too: less time for long clips, for one more copy of each "
        "block's input in memory; with video models auto is attention where that fits with room to spare, and the "
        "plan says so. offload: "
        "also moves the blocks' inputs to RAM, at the same time as the GPU works; the least VRAM, for long "
        "sequences and many blocks. selective: computes every second block a second time; half of the saving "
        "for half of the time.",
        aliases=("gradient_checkpointing_cpu_offload", "cpu_offload_checkpointing", "unsloth_offload_checkpointing"),
    )
    activation_memory_budget: float | None = setting(
        None,
        ge=0,
        le=1,
        unit="share",
        label="Activation memory budget",
        help="The share of its activations that a compiled block may keep; those that are cheapest to compute again "
        "are dropped. On an H100, 0.1 lowered 12.0 GB to 7.9 GB for a fifth more time, and 0 to 6.9 GB for a "
        "third more. Empty: keeps what is fastest, or nothing with gradient checkpointing. Only inductor uses "
        "it.",
        aliases=("memory_budget", "activation_budget"),
        advanced=True,
    )
    base_quantization: Literal["none", "fp8", "int8", "nf4"] = setting(
        "none",
        label="Base model quantization",
        help="Quantizes the frozen linear layers of the base model's blocks while it loads. fp8 and int8 need half "
        "the memory of bf16, with one scale for each row. int8 is more exact, and compiles with torch before "
        "2.13 on GPUs older than Ada too. nf4 needs a quarter, with a visible loss of precision, and needs the "
        "package bitsandbytes. The LoRA itself stays float32.",
        aliases=("quantize_base", "base_dtype", "transformer_quantization", "quantization"),
        basic=True,
    )
    base_compute: Literal["bf16", "int8", "fp8"] = setting(
        "bf16",
        label="Base model compute format",
        help="bf16: quantized weights are converted back to the precision of the run before each product. int8 "
        "(NVIDIA Ampere and newer) and fp8 (Ada and newer) multiply in 8 bits: activations are rounded row by row, "
        "and with base_products fast gradients too. Small layers and modulation stay in the precision of the run; "
        "int8 rotates its inputs (Hadamard) so that outliers cost less. Without base_quantization they also keep "
        "the weights in that format, which saves memory.",
        aliases=("quantized_matmul", "scaled_mm", "fp8_scaled_matmul", "int8_matmul"),
        advanced=True,
    )
    base_products: Literal["auto", "fast", "small"] = setting(
        "auto",
        label="8-bit products",
        help="What base_compute fp8 and int8 keep for the backward pass. fast: a second, transposed 8-bit copy of each "
        "weight, so that the backward pass multiplies in 8 bits too; in all as much memory as bf16. small: no copy; "
        "the backward pass converts weights back, which gives the more exact gradients, or multiplies int8 without "
        "a copy on Ampere, Ada and consumer Blackwell. auto: fast for fp8 where the copies fit on the GPU and no "
        "blocks are swapped, small otherwise.",
        advanced=True,
    )
    text_encoder_quantization: Literal["none", "int8", "nf4"] = setting(
        "none",
        label="Text encoder quantization",
        help="Quantizes the linear layers of the text encoders while they load: for a GPU or a machine that is too "
        "small for T5 in bf16. Captions that are encoded like this have a cache of their own.",
        aliases=("quantize_text_encoder", "fp8_t5", "t5_quantization", "text_encoder_dtype"),
    )
