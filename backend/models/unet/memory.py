"""What a Stable Diffusion UNet keeps in memory, counted on diffusers' classes (0.42) at full size. Without torch."""

from __future__ import annotations

from collections.abc import Mapping

from backend.models.activations import BlockActivations, FamilyMemory, Kept, VaeActivations


def memory(blocks: Mapping[str, int], around: int, levels: int) -> FamilyMemory:
    """blocks: class -> tokens for each token of the picture. around: bytes a token that frozen convolutions keep."""
    places = (
        # an upsampler's convolution sees the picture that it has doubled
        (rf"down_blocks\.{n}\.|up_blocks\.{levels - 1 - n}\.resnets|up_blocks\.{levels - 2 - n}\.upsamplers", pixels)
        for n, pixels in ((n, 4 ** (levels - 1 - n)) for n in range(levels))
    )
    counted = tuple(_block(name, scale) for name, scale in blocks.items())
    return FamilyMemory(counted, VaeActivations(5, 6), around, tuple(places), launch_bound=True)


def _block(name: str, scale: int) -> BlockActivations:
    """Self-attention, attention to the text, and a gated feed-forward, whose gate after its activation is kept too."""
    return BlockActivations(
        name,
        "attn1.to_q",
        others=((r"attn2\.to_[kv]$", "text"),),
        # three norms; queries, keys, values and results of the first attention, queries and results of the second
        kept={"image": Kept(full=3, half=4 + 2 + 4)},
        outputs=(r"net\.0\.proj$",),
        shared=(r"to_out\.0$",),
        scale=scale,
    )
