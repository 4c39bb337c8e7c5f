"""[memory]: how a model that is larger than the card is trained on it."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


class MemorySection(Section):
    """What lies on the card, and when."""

    vram_limit_gb: float | None = setting(
        None,
        gt=0,
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
