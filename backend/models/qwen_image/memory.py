"""What Qwen-Image's blocks and VAE keep in memory, counted on diffusers' classes (0.42) at full size. Without torch."""

from __future__ import annotations

from dataclasses import replace

from backend.models.activations import BlockActivations, FamilyMemory, Kept, VaeActivations

# Two norms of each stream and those of queries and keys in float32; queries, keys, values and the attention's result,
# and once more the queries and keys that came into their norms.
_STREAM = Kept(full=4, half=6)

MEMORY = FamilyMemory(
    blocks=(
        BlockActivations(
            "block",
            "attn.to_q",
            others=((r"_mod\.", "row"), (r"add_|^txt_", "text")),
            kept={"image": _STREAM, "text": _STREAM},
            outputs=(r"net\.0\.proj$",),
            shared=(r"to_out\.0$", r"to_add_out$"),
        ),
    ),
    vae=VaeActivations(encode=11, decode=12),
    # the last norm's input in float32, and the rotary tables
    around=13400,
)

_STILL = replace(MEMORY.blocks[0], kept={"image": replace(_STREAM, half=_STREAM.half + 4), "text": _STREAM})

OF_FAMILY = {
    # two scales and two gates for each token of a picture, where Edit-2511 has them by its timestep; 2509 has not
    "qwen_image_edit_plus": replace(MEMORY, blocks=(_STILL,)),
}
"""Of families in this folder that keep more."""
