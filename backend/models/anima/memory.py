"""What Anima's blocks and VAE keep in memory, counted on diffusers' classes (0.42) at full size. Without torch."""

from __future__ import annotations

from backend.models.activations import BlockActivations, FamilyMemory, Kept, VaeActivations

# Three norms of the stream, and those of the queries and keys of both attentions, in float32; what both attentions are
# given and give, and their normed queries and keys.
MEMORY = FamilyMemory(
    blocks=(
        BlockActivations(
            "block",
            "attn1.to_q",
            others=((r"attn2\.to_[kv]$", "text"), (r"^norm", "row")),
            kept={"image": Kept(full=6, half=7), "text": Kept(full=1, half=3)},
            outputs=(r"net\.0\.proj$",),
        ),
    ),
    vae=VaeActivations(encode=11, decode=12),
    around=9400,
)
