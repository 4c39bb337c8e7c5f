"""What SD3's blocks and VAE keep in memory, counted on diffusers' classes (0.42) at full size. Without torch."""

from __future__ import annotations

from backend.models.activations import BlockActivations, FamilyMemory, Kept, VaeActivations

# Queries, keys, values and the attention's result.
_ATTENTION = 4
# Of queries and keys: what comes into their norms, and that in float32. SD3 itself has none.
_NORMED = Kept(full=2, half=2)
_NORMS = (r"^attn\.norm_q", {"image": _NORMED, "text": _NORMED}), (r"^attn2\.norm_q", {"image": _NORMED})


def _block(name: str, image: Kept, text: Kept) -> BlockActivations:
    return BlockActivations(
        name,
        "attn.to_q",
        others=((r"^norm1", "row"), (r"add_|context", "text")),
        kept={"image": image, "text": text},
        outputs=(r"net\.0\.proj$",),
        shared=(r"to_out\.0$", r"to_add_out$"),
        normed=_NORMS,
    )


# The norms of both streams in float32; the last block's text has one.
_TWO, _ONE = Kept(full=2, half=_ATTENTION), Kept(full=1, half=_ATTENTION)

MEMORY = FamilyMemory(
    blocks=(
        _block("dual", Kept(full=2, half=2 * _ATTENTION), _TWO),
        _block("joint", _TWO, _TWO),
        _block("last", _TWO, _ONE),
    ),
    vae=VaeActivations(encode=5, decode=6),
    # the last norm's input in float32, at the width of SD3.5 large
    around=9728,
)
