"""Describes what a block keeps for its backward pass, as data that a family gives. Without torch.

The figures of a family are counted from what autograd really saves (tests/plan/test_activations.py counts again).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Stream = Literal["image", "text", "joint", "row"]
"""Which tokens a layer sees: those of the picture, of the text, both in one sequence, or one a picture."""


@dataclass(frozen=True)
class Kept:
    """What one stream keeps a token beside the inputs of trained layers, in widths of the model.

    full: copies in float32 under mixed precision (inputs of norms). half: in the format of the arithmetic (queries,
    keys, values and the attention's result, of which each counts one).
    """

    full: float = 0.0
    half: float = 0.0


@dataclass(frozen=True)
class BlockActivations:
    """What a block of the class `block` keeps.

    probe: end of the path of a linear layer whose input is as wide as the model. stream: what its layers see, unless a
    pattern of `others` (a regular expression searched in the layer's path within the block) says otherwise. kept: by
    stream. outputs: patterns of layers whose result is kept too, as what goes into a nonlinearity. shared: patterns of
    layers whose input is kept anyway, so that training them costs no further copy for a single row. same: the same,
    whatever the number of rows. normed: what is kept beside, by
    stream, where a norm's path fits a pattern, of norms that not all models have. scale: tokens of these blocks for
    each token of the picture, where a model works at several resolutions.
    """

    block: str
    probe: str
    stream: Stream = "image"
    others: tuple[tuple[str, Stream], ...] = ()
    kept: Mapping[Stream, Kept] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    normed: tuple[tuple[str, Mapping[Stream, Kept]], ...] = ()
    scale: int = 1
    same: tuple[str, ...] = ()


def joint_blocks(half: float) -> tuple[BlockActivations, BlockActivations]:
    """What double and single blocks of FLUX.1's build keep.

    half: copies of a stream in the format of the arithmetic, which the norms of queries and keys decide. In float32
    there are those norms' inputs and two more of a double block's streams, one more of a single block's.
    """
    stream = Kept(full=4, half=half)
    double = BlockActivations(
        "double",
        "attn.to_q",
        others=((r"add_|context", "text"), (r"^norm1", "row")),
        kept={"image": stream, "text": stream},
        outputs=(r"net\.0\.proj$",),
        shared=(r"to_out\.0$", r"to_add_out$"),
    )
    single = BlockActivations(
        "single",
        "attn.to_q",
        stream="joint",
        others=((r"^norm", "row"),),
        kept={"joint": Kept(full=3, half=half)},
        outputs=(r"proj_mlp$",),
    )
    return double, single


@dataclass(frozen=True)
class VaeActivations:
    """Numbers a pixel that the VAE holds beside its weights at the worst moment, in widths of its first convolution."""

    encode: float
    decode: float


@dataclass(frozen=True)
class FamilyMemory:
    """The memory of a family. blocks: one entry a block class.

    around: bytes a token of the picture that layers outside of these blocks keep under mixed precision. around_full:
    more of that, in copies of the stream in float32, of a family whose models differ in width. resolutions:
    pixels that such a layer sees for each token of the picture, by the start of its path; 1 for one that is not named.
    launch_bound: its many small kernels wait for the processor, so that recorded passes (CUDA graphs) always pay.
    """

    blocks: tuple[BlockActivations, ...]
    vae: VaeActivations
    around: int = 0
    resolutions: tuple[tuple[str, int], ...] = ()
    launch_bound: bool = False
    around_full: float = 0.0
    given_half: float = 0.0
