"""Declares [memory]: what saves GPU memory, and what it costs."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


class MemorySection(Section):
    """How a base model that is larger than the card is trained on it."""

    blocks_to_swap: int = setting(
        0,
        ge=0,
        le=1000,
        unit="blocks",
        label="Blocks to swap",
        help="Keeps the frozen weights of so many blocks in the machine's memory and streams them to the card just "
        "before they are needed, in the forward and again in the backward pass. 0 keeps all on the card. The loss "
        "stays the same; a step can't get shorter than the transfer, which the log states.",
        aliases=("block_swap", "num_blocks_to_swap"),
    )
    swap_ring: int = setting(
        2,
        ge=2,
        le=16,
        unit="buffers",
        label="Swap buffers on the card",
        help="Places on the card for swapped blocks, each as large as the largest of them: one is computed with while "
        "the others are filled. More of them even out blocks of different sizes, and take memory.",
        aliases=("swap_ring_size", "swap_prefetch"),
        advanced=True,
    )
    swap_pinned_limit_gb: float | None = setting(
        None,
        ge=0,
        le=4096,
        unit="GB",
        label="Pinned memory limit",
        help="How much of the swapped weights may lie in pinned memory, which the card reads several times as fast as "
        "ordinary memory, and which no other program can use meanwhile. Empty: 80 % of the machine's memory, half of "
        "it on Windows, which allows no more. What is beyond is streamed from ordinary memory, and the log says so.",
        aliases=("pinned_memory_limit", "max_pinned_memory_gb"),
        advanced=True,
    )
    vram_limit_gb: float | None = setting(
        None,
        ge=1,
        le=4096,
        unit="GB",
        label="VRAM limit",
        help="The most video memory that the run may take; the rest is left to the desktop and other programs. A run "
        "that needs more ends as if the card were that small. Empty: all that is free.",
        aliases=("vram_limit", "max_vram", "gpu_memory_fraction", "memory_fraction"),
    )
    offload_by_turns: Literal["auto", "on", "off"] = setting(
        "auto",
        label="Offload by turns",
        help="While a sample picture is decoded, the denoiser's weights wait in RAM, so that the VAE has the card to "
        "itself. auto does it where the two would not fit together; on always; off never. Encoders always take "
        "turns: each leaves before the next one comes.",
        aliases=("cpu_offload", "model_offload", "sequential_offload", "lowram_sampling", "offload_denoiser"),
        advanced=True,
    )
    vae_tiling: Literal["auto", "on", "off"] = setting(
        "auto",
        label="VAE tiling",
        help="Encodes and decodes large pictures in overlapping tiles: far less memory, and tiny differences where "
        "tiles meet. auto does it only where a whole picture would not fit the card.",
        aliases=("enable_vae_tiling", "vae_tiled", "tiled_vae", "vae_spatial_tile_sample_min_size"),
        advanced=True,
    )
    checkpointing_kind: Literal["auto", "block", "offload", "selective"] = setting(
        "auto",
        label="Checkpointing kind",
        help="What gradient checkpointing does. block computes every block a second time. auto does so within the "
        "compiled graphs, without what no gradient needs: as little memory, less time. Where blocks are not compiled "
        "by inductor, linear layers are left out or there is dropout, auto is block. offload also keeps the blocks' "
        "inputs in RAM, copied beside the work: the least video memory, for long sequences and many blocks. "
        "selective computes every second block a second time: half of the saving for half of the time.",
        aliases=("gradient_checkpointing_cpu_offload", "cpu_offload_checkpointing", "unsloth_offload_checkpointing"),
    )
    activation_memory_budget: float | None = setting(
        None,
        ge=0,
        le=1,
        unit="share",
        label="Activation budget",
        help="The share of its activations that a compiled block may keep; the cheapest to compute again is dropped. "
        "On an H100 0.1 took 12.0 GB down to 7.9 for a fifth more time, 0 to 6.9 for a third. "
        "Empty keeps what is fastest, or nothing under gradient checkpointing. Only inductor uses it.",
        aliases=("memory_budget", "activation_budget"),
        advanced=True,
    )
    base_quantization: Literal["none", "fp8", "int8", "nf4"] = setting(
        "none",
        label="Base weights kept as",
        help="Quantises the frozen linear layers of the base model's blocks while it loads. fp8 and int8 halve their "
        "memory against bf16, with a scale a row; int8 is the more exact of the two, and the one that torch below 2.13 "
        "compiles on cards before Ada. nf4 quarters it, at a visible loss of precision, and needs the package "
        "bitsandbytes. The LoRA itself stays float32.",
        aliases=("quantize_base", "base_dtype", "transformer_quantization", "quantization"),
    )
    base_compute: Literal["bf16", "int8", "fp8"] = setting(
        "bf16",
        label="Base layers multiply in",
        help="bf16 brings quantised weights back to the precision of the run before each product. int8 (from NVIDIA's "
        "Ampere on) and fp8 (from Ada on) round activations and gradients to 8 bits too, row by row: not the same "
        "numbers, and slower for one picture a step (FLUX's width on an H100: bf16 107 ms, fp8 118, int8 122). "
        "Alone, it also keeps the weights in that format, which saves memory.",
        aliases=("quantized_matmul", "scaled_mm", "fp8_scaled_matmul", "int8_matmul"),
        advanced=True,
    )
    text_encoder_quantization: Literal["none", "int8", "nf4"] = setting(
        "none",
        label="Text encoders kept as",
        help="Quantises the linear layers of the text encoders while they load: for a card or a machine that is too "
        "small for T5 in bf16. Captions encoded so are kept apart from those encoded in full precision.",
        aliases=("quantize_text_encoder", "fp8_t5", "t5_quantization", "text_encoder_dtype"),
    )
