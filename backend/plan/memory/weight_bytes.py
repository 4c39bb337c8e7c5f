"""Bytes that weights take, quantised or not, as arithmetic on names and shapes, without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

FORMATS = ("fp8", "int8", "nf4")
"""What frozen linear layers can be kept in, beside the format of the other weights."""

NF4_BLOCK = 64
"""Weights that share one scale in NF4 (Dettmers et al., arXiv 2305.14314)."""

MULTIPLE = 16
"""Rows and columns of a quantised layer are multiples of this: what 8-bit matrix products on GPUs ask for."""

COPYING = ("fp8",)
"""Formats of products whose weights get a transposed copy, where the choice is left to the run and there is room."""

SMALLEST = 1024 * 2048
"""Weights of the smallest layer that a GPU multiplies in 8 bits: below it, quantising costs more than it saves."""

_ROW_SCALE = 4
_BLOCK_SCALE = 2
# A layer inside a list of blocks has a number in its path; embeddings and the final projection of a model have none.
_IN_A_LIST = re.compile(r"(^|\.)\d+\.")
# Layers that get one row a picture: modulation by the noise level (norm1.linear, img_mod.1, adaLN_modulation.0).
_A_ROW_A_PICTURE = re.compile(r"(^|\.)(\w*norm\w*|\w*_mod|\w*modulation|time_emb_proj)(\.\w+)?\.weight$")


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
        len(shape) == 2
        and all(side % MULTIPLE == 0 for side in shape)
        and name.endswith(".weight")
        and _in_a_list(name)
    )


@lru_cache(maxsize=1 << 14)
def _in_a_list(name: str) -> bool:
    return _IN_A_LIST.search(name) is not None


def multiplied_in_8_bits(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a GPU multiplies by the quantised weight `name` of `shape` (out, in) in 8 bits, where a run asks for it.

    Modulation, which has one row a picture, and small layers are brought back to 16 bits instead.
    """
    return quantises(name, shape) and math.prod(shape) >= SMALLEST and _A_ROW_A_PICTURE.search(name) is None


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


def tensor_bytes(name: str, shape: tuple[int, ...], quantization: str | None, width: int, copies: bool = False) -> int:
    """Bytes of one tensor of a model that is loaded with `quantization`; `width` bytes a number where it has none.

    copies: with the transposed copy of each weight that is multiplied in 8 bits (`memory.base_products` fast).
    """
    if quantization is None or not quantises(name, shape):
        return math.prod(shape) * width
    copy = math.prod(shape) if copies and multiplied_in_8_bits(name, shape) else 0
    return round(math.prod(shape) * bytes_per_weight(quantization, width, shape[1])) + copy


def total_bytes(
    shapes: Mapping[str, tuple[int, ...]] | Iterable[tuple[str, tuple[int, ...]]],
    quantization: str | None,
    width: int,
    copies: bool = False,
) -> int:
    """Bytes of all tensors of a part, from names and shapes as `families.files.headers.folder_tensors` reads them.

    copies: as in `tensor_bytes`.
    """
    pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
    if quantization is None:
        return width * sum(math.prod(shape) for _, shape in pairs)
    return sum(tensor_bytes(name, shape, quantization, width, copies) for name, shape in pairs)
