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
class ProductWay:
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


WAYS: dict[str, dict[str, ProductWay]] = {
    "fp8": {
        "fast": ProductWay(forward="scaled", backward="scaled", copies=True),
        "fast-rowwise": ProductWay(forward="rowwise", backward="rowwise", copies=True),
        "small": ProductWay(forward="scaled"),
        "small-rowwise": ProductWay(forward="rowwise"),
        "small-fused": ProductWay(forward="scaled", backward="fused"),
    },
    "int8": {
        "fast": ProductWay(forward="fused", backward="fused", copies=True, rotates=True),
        "fast-unrotated": ProductWay(forward="fused", backward="fused", copies=True),
        "small": ProductWay(forward="fused", rotates=True),
        "small-unrotated": ProductWay(forward="fused"),
        "small-fused": ProductWay(forward="fused", backward="fused", rotates=True),
    },
}
"""Format of the products -> what is kept -> the way. "fast" and "small" are settings, the others are for the bench."""


def name_of_way(compute: str, products: str, device: torch.device) -> str:
    """What `products` means on `device`, as a run's record keeps it: of fp8 always with the kernel, "fast-scaled".

    Where torch's fp8 kernel with scales inside was found faster on this GPU, it takes the place of the other.
    On GPUs of `READ_EITHER_AXIS`, where int8 is two to four times as fast as bf16, "small" multiplies in int8 in the
    backward pass too. Given again, the name means the same, and nothing is measured.
    """
    if compute == "bf16" or device.type != "cuda":
        return products
    if compute == "fp8" and products in ("fast", "small"):
        return f"{products}-{fp8_kernel(device)}"
    if compute == "int8" and products == "small" and torch.cuda.get_device_capability(device)[0] in READ_EITHER_AXIS:
        return "small-fused"
    return products


def way_of(compute: str, products: str, device: torch.device) -> ProductWay:
    """The way of a layer on `device`. compute: "bf16", "fp8" or "int8". products: a name in `WAYS`, or `name_of_way`'s.

    KeyError for names that mean nothing.
    """
    if compute == "bf16":
        return ProductWay()
    return WAYS[compute][name_of_way(compute, products, device).removesuffix("-scaled")]
