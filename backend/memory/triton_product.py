"""Multiplies 8-bit matrices in one Triton kernel that scales its sums before it writes them: for NVIDIA GPUs alone.

Nothing imports this module where Triton is missing. The sums of int8 stay in registers: ``torch._int_mm`` writes them
as int32, twice the bytes of the result, to be read, scaled and written again. The right side is read along either of
its axes, so that the backward pass needs no transposed copy of the weight.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

log = logging.getLogger(__name__)

# rows, columns, depth of a tile; stages; warps: for large products first, then for few rows and older GPUs
_TILES = ((128, 256, 128, 3, 8), (128, 128, 128, 4, 8), (128, 128, 64, 4, 4), (64, 128, 128, 3, 4))
_BUCKET = 1024


def _quickly(launch: Any, quantiles: Any) -> Any:
    return triton.testing.do_bench(launch, warmup=4, rep=16, quantiles=quantiles)


def _fits(configs: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
    """Tiles whose stages fit into the shared memory of a block of the GPU."""
    properties = torch.cuda.get_device_properties(named["a"].device)
    room = properties.shared_memory_per_block_optin
    kept = [
        each
        for each in configs
        if (each.kwargs["TILE_M"] + each.kwargs["TILE_N"]) * each.kwargs["TILE_K"] * each.num_stages <= room
    ]
    return kept or configs[-1:]


@triton.autotune(
    configs=[
        triton.Config({"TILE_M": m, "TILE_N": n, "TILE_K": k}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in _TILES
    ],
    # the size of a batch in coarse steps: shapes of one run differ by some tokens, and one choice does for them
    key=["bucket", "columns_count", "depth", "along_depth", "HAS_COLUMNS"],
    prune_configs_by={"early_config_prune": _fits},
    do_bench=_quickly,
    cache_results=True,
)
@triton.jit(do_not_specialize=["rows_count", "bucket", "along_depth"])
def _scaled_kernel(
    a,
    b,
    out,
    row_scale,
    column_scale,
    rows_count,
    columns_count,
    depth,
    b_depth_stride,
    b_column_stride,
    bucket,
    along_depth,
    HAS_COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    # tiles in groups of eight rows of tiles, so that neighbours in time read the same columns from the cache
    tile = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(rows_count, TILE_M), tl.cdiv(columns_count, TILE_N)
    first_m = tile // (8 * tiles_n) * 8
    height = min(tiles_m - first_m, 8)
    at_m = first_m + tile % (8 * tiles_n) % height
    at_n = tile % (8 * tiles_n) // height
    m, n = at_m * TILE_M + tl.arange(0, TILE_M), at_n * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    # beyond the edge some row is read again, and not written
    a_at = a + (m % rows_count)[:, None].to(tl.int64) * depth + k[None, :]
    b_at = b + k[:, None].to(tl.int64) * b_depth_stride + (n % columns_count)[None, :].to(tl.int64) * b_column_stride
    sums = tl.zeros((TILE_M, TILE_N), dtype=SUMS)
    for start in range(0, depth, TILE_K):
        left = tl.load(a_at, mask=k[None, :] < depth - start, other=0.0)
        right = tl.load(b_at, mask=k[:, None] < depth - start, other=0.0)
        sums = tl.dot(left, right, sums, out_dtype=SUMS)
        a_at += TILE_K
        b_at += TILE_K * b_depth_stride
    scaled = sums.to(tl.float32) * tl.load(row_scale + m, mask=m < rows_count, other=0.0)[:, None]
    if HAS_COLUMNS:
        scaled = scaled * tl.load(column_scale + n, mask=n < columns_count, other=0.0)[None, :]
    inside = (m < rows_count)[:, None] & (n < columns_count)[None, :]
    out_at = out + m[:, None].to(tl.int64) * columns_count + n[None, :]
    tl.store(out_at, scaled.to(out.dtype.element_ty), mask=inside)


def _blocks(named: dict[str, Any]) -> None:
    """Give the descriptors the tile of the configuration that is tried."""
    named["a"].block_shape = [named["TILE_M"], named["TILE_K"]]
    named["b"].block_shape = [named["TILE_N"], named["TILE_K"]]


@triton.autotune(
    configs=[
        triton.Config({"TILE_M": m, "TILE_N": n, "TILE_K": 128}, num_stages=stages, num_warps=8, pre_hook=_blocks)
        for m, n, stages in ((128, 256, 4), (128, 256, 3), (128, 128, 4))
    ],
    key=["bucket", "columns_count", "depth", "HAS_COLUMNS"],
    do_bench=_quickly,
    cache_results=True,
)
@triton.jit(do_not_specialize=["rows_count", "bucket"])
def _described_kernel(
    a,
    b,
    out,
    row_scale,
    column_scale,
    rows_count,
    columns_count,
    depth,
    bucket,
    HAS_COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    # as `_scaled_kernel`, tiles fetched by descriptors: of `a` (M, K) and of `b` as (N, K)
    tile = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(rows_count, TILE_M), tl.cdiv(columns_count, TILE_N)
    first_m = tile // (8 * tiles_n) * 8
    height = min(tiles_m - first_m, 8)
    at_m = (first_m + tile % (8 * tiles_n) % height) * TILE_M
    at_n = (tile % (8 * tiles_n) // height) * TILE_N
    sums = tl.zeros((TILE_M, TILE_N), dtype=SUMS)
    for start in range(0, depth, TILE_K):
        # beyond the edges descriptors give zeros
        sums = tl.dot(a.load([at_m, start]), b.load([at_n, start]).T, sums, out_dtype=SUMS)
    m, n = at_m + tl.arange(0, TILE_M), at_n + tl.arange(0, TILE_N)
    scaled = sums.to(tl.float32) * tl.load(row_scale + m, mask=m < rows_count, other=0.0)[:, None]
    if HAS_COLUMNS:
        scaled = scaled * tl.load(column_scale + n, mask=n < columns_count, other=0.0)[None, :]
    inside = (m < rows_count)[:, None] & (n < columns_count)[None, :]
    out_at = out + m[:, None].to(tl.int64) * columns_count + n[None, :]
    tl.store(out_at, scaled.to(out.dtype.element_ty), mask=inside)


def scaled_product(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``(a @ b) * rows * columns`` (M, N) in `dtype`, of 8-bit `a` (M, K) row-major and `b` (K, N) of any strides.

    rows: (M, 1) float32. columns: (N,) float32, or None for ones. Where the GPU fetches tiles by descriptors, the
    faster kernel of the two is taken for a size; their sums of int8 are the same.
    """
    out = torch.empty(a.shape[0], b.shape[1], dtype=dtype, device=a.device)
    work = (a, b, out, rows, columns)
    with torch.cuda.device(a.device):
        _KERNELS[_fastest(work)](*work)
    return out


def _by_pointers(a: Tensor, b: Tensor, out: Tensor, rows: Tensor, columns: Tensor | None) -> None:
    (count, depth), width = a.shape, b.shape[1]
    sums = tl.int32 if a.dtype == torch.int8 else tl.float32
    _scaled_kernel[_grid(out)](
        a, b, out, rows, rows if columns is None else columns, count, width, depth, b.stride(0), b.stride(1),
        count // _BUCKET, int(b.stride(0) == 1), HAS_COLUMNS=columns is not None, SUMS=sums,
    )  # fmt: skip


def _by_descriptors(a: Tensor, b: Tensor, out: Tensor, rows: Tensor, columns: Tensor | None) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    (count, depth), width = a.shape, b.shape[1]
    sums = tl.int32 if a.dtype == torch.int8 else tl.float32
    left, right = (TensorDescriptor.from_tensor(tensor, [128, 128]) for tensor in (a, b.t()))
    _described_kernel[_grid(out)](
        left, right, out, rows, rows if columns is None else columns, count, width, depth, count // _BUCKET,
        HAS_COLUMNS=columns is not None, SUMS=sums,
    )  # fmt: skip


def _grid(out: Tensor) -> Any:
    return lambda tiles: (triton.cdiv(out.shape[0], tiles["TILE_M"]) * triton.cdiv(out.shape[1], tiles["TILE_N"]),)


_KERNELS = {"pointers": _by_pointers, "descriptors": _by_descriptors}
_fastest_of: dict[tuple[Any, ...], str] = {}


def _fastest(work: tuple[Any, ...]) -> str:
    """Name of the kernel for this size: measured where both can be had, while nothing is recorded."""
    a, b, _, _, columns = work
    if b.stride(0) != 1:
        return "pointers"
    key = (a.device, a.dtype, a.shape[0] // _BUCKET, *b.shape, columns is None)
    if key not in _fastest_of:
        if torch.cuda.get_device_capability(a.device)[0] not in (9, 10):
            return _fastest_of.setdefault(key, "pointers")
        if torch.cuda.is_current_stream_capturing():
            return "pointers"
        seconds = {name: _seconds(name, work) for name in _KERNELS}
        _fastest_of[key] = min(seconds, key=lambda name: seconds[name])
        log.debug("8-bit product %s: %s ms", key[1:], seconds)
    return _fastest_of[key]


def _seconds(name: str, work: tuple[Any, ...]) -> float:
    """Median milliseconds of a kernel; infinite where it can't be compiled or started."""
    times = []
    try:
        for _ in range(6):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            _KERNELS[name](*work)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    except Exception as error:
        # of a kind of its own with each of Triton's versions; the other kernel does the same
        log.warning("8-bit product by %s: %s", name, error)
        return float("inf")
    return sorted(times)[2]
