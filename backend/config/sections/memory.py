"""[memory]: what trades memory of the card for time or for memory of the machine."""

from __future__ import annotations

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
