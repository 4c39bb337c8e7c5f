"""Bytes that weights take, quantised or not, as arithmetic on names and shapes, without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

FORMATS = ("fp8", "int8", "nf4")
"""What frozen linear layers can be kept in, beside the format of the other weights."""

NF4_BLOCK = 64
"""Weights that share one scale in NF4 (Dettmers et al., arXiv 2305.14314)."""

MULTIPLE = 16
"""Rows and columns of a quantised layer are multiples of this: what 8-bit matrix products on GPUs ask for."""

_ROW_SCALE = 4
_BLOCK_SCALE = 2
# A layer inside a list of blocks has a number in its path; embeddings and the final projection of a model have none.
_IN_A_LIST = re.compile(r"(^|\.)\d+\.")


def stored_as(quantization: str, compute: str = "bf16") -> str | None:
    """What frozen layers are kept in, by the settings base_quantization and base_compute; None for as they are.

    8-bit products work on 8-bit weights: asking for them alone asks for those too.
    """
    if quantization != "none":
        return quantization
    return None if compute == "bf16" else compute


def quantises(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the linear layer's weight `name` (``blocks.0.attn.to_q.weight``) of `shape` (out, in) is quantised.

    Only layers inside lists of blocks are, where nearly all weights are; embedders and final projections, which a
    coarser format hurts most, stay as they are. A caller that knows the modules asks for linear layers only.
    """
    return (
        name.endswith(".weight")
        and _IN_A_LIST.search(name) is not None
        and len(shape) == 2
        and all(side % MULTIPLE == 0 for side in shape)
    )


def bytes_per_weight(quantization: str | None, width: int, columns: int = 3072) -> float:
    """Bytes a weight takes with its share of the scales.

    quantization: None, "fp8", "int8" or "nf4". width: bytes of an unquantised one. columns: input features of the
    layer; fp8 and int8 have a float32 scale a row, NF4 a bf16 one a block.
    """
    if quantization is None:
        return width
    if quantization == "nf4":
        return 0.5 + _BLOCK_SCALE / NF4_BLOCK
    return 1 + _ROW_SCALE / columns


def tensor_bytes(name: str, shape: tuple[int, ...], quantization: str | None, width: int) -> int:
    """Bytes of one tensor of a model that is loaded with `quantization`; `width` bytes a number where it has none."""
    if quantization is None or not quantises(name, shape):
        return math.prod(shape) * width
    return round(math.prod(shape) * bytes_per_weight(quantization, width, shape[1]))


def total_bytes(
    shapes: Mapping[str, tuple[int, ...]] | Iterable[tuple[str, tuple[int, ...]]], quantization: str | None, width: int
) -> int:
    """Bytes of all tensors of a part, from names and shapes as `families.files.headers.folder_tensors` reads them."""
    pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
    return sum(tensor_bytes(name, shape, quantization, width) for name, shape in pairs)
