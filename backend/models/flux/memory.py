"""What FLUX's blocks and VAE keep in memory, counted on diffusers' classes (0.42) at full size. Without torch."""

from __future__ import annotations

from backend.models.activations import BlockActivations, FamilyMemory, Kept, VaeActivations

# Two norms of the stream and those of queries and keys in float32; queries, keys, values and the attention's result.
_DOUBLE = Kept(full=4, half=4)

MEMORY = FamilyMemory(
    blocks=(
        BlockActivations(
            "double",
            "attn.to_q",
            others=((r"add_|context", "text"), (r"^norm1", "row")),
            kept={"image": _DOUBLE, "text": _DOUBLE},
            outputs=(r"net\.0\.proj$",),
            shared=(r"to_out\.0$", r"to_add_out$"),
        ),
        BlockActivations(
            "single",
            "attn.to_q",
            stream="joint",
            others=((r"^norm", "row"),),
            kept={"joint": Kept(full=3, half=4)},
            outputs=(r"proj_mlp$",),
        ),
    ),
    vae=VaeActivations(encode=5, decode=6),
)
