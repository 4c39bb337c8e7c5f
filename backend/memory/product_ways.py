"""Chooses how 8-bit products are computed: the kernel of each pass, a transposed copy of the weights, rotated inputs.

By settings and by the GPU's compute capability. What was measured stands in docs/benchmarks.md, what was not is told
there too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from backend.memory.product_probe import fp8_kernel

READ_EITHER_AXIS = (8, 12)
"""Major compute capabilities (Ampere and Ada, consumer Blackwell) whose 8-bit instructions take operands from
registers, where a weight is turned for little; those of Hopper and data-centre Blackwell read along the summed axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a quantised layer multiplies.

    forward and backward: "dequantised" brings the weight to the format of the input; "scaled" is ``_scaled_mm`` with
    scales of one, in the kernel for one scale a matrix, and rows and columns scaled after it, which the compiler joins
    to what comes next; "rowwise" is ``_scaled_mm`` with the scales inside; "fused" is the operator `scaled_product`.
    copies: whether the layer keeps its numbers transposed as well, for the backward pass. rotates: whether inputs and
    weight are rotated.
    """

    forward: str = "dequantised"
    backward: str = "dequantised"
    copies: bool = False
    rotates: bool = False


WAYS: dict[str, dict[str, Way]] = {
    "fp8": {
        "fast": Way(forward="scaled", backward="scaled", copies=True),
        "fast-rowwise": Way(forward="rowwise", backward="rowwise", copies=True),
        "small": Way(forward="scaled"),
        "small-rowwise": Way(forward="rowwise"),
        "small-fused": Way(forward="scaled", backward="fused"),
    },
    "int8": {
        "fast": Way(forward="fused", backward="fused", copies=True, rotates=True),
        "fast-unrotated": Way(forward="fused", backward="fused", copies=True),
        "small": Way(forward="fused", rotates=True),
        "small-unrotated": Way(forward="fused"),
        "small-fused": Way(forward="fused", backward="fused", rotates=True),
    },
}
"""Format of the products -> what is kept -> the way. "fast" and "small" are settings, the others are for the bench."""


def way_of(compute: str, products: str, device: torch.device) -> Way:
    """The way of a layer on `device`. compute: "bf16", "fp8" or "int8". products: a name in `WAYS`.

    Where torch's fp8 kernel with scales inside was found faster on this GPU, it takes the place of the other.
    On GPUs of `READ_EITHER_AXIS`, where int8 is two to four times as fast as bf16, "small" multiplies in int8 in the
    backward pass too. KeyError for names that mean nothing.
    """
    if compute == "bf16":
        return Way()
    if device.type == "cuda":
        if compute == "fp8" and products in ("fast", "small") and fp8_kernel(device) == "rowwise":
            products = f"{products}-rowwise"
        major, _ = torch.cuda.get_device_capability(device)
        if compute == "int8" and products == "small" and major in READ_EITHER_AXIS:
            products = "small-fused"
    return WAYS[compute][products]
