"""Finds by a short measurement which of torch's fp8 kernels is the faster one on a GPU, once a process.

Both give the same product but for rounding. The kernel with one scale a matrix is taken unless it fails or the other
takes clearly less time: so that noise does not make two starts of a run compute differently.
"""

from __future__ import annotations

import functools
import logging
import statistics

import torch
from torch import Tensor

log = logging.getLogger(__name__)

_ROWS, _DEPTH, _COLUMNS = 4096, 3072, 12288
_CLEARLY = 0.85
_TIMES = 7


@functools.cache
def fp8_kernel(device: torch.device) -> str:
    """ "scaled" or "rowwise", as `backend.memory.product_ways` names them, on the CUDA device `device`.

    The first call takes some ten milliseconds and waits for the device.
    """
    seconds = {name: _seconds(name, device) for name in ("scaled", "rowwise")}
    times = ", ".join(f"{name} {'fails' if ms is None else f'{ms:.3f} ms'}" for name, ms in seconds.items())
    scaled, rowwise = seconds["scaled"], seconds["rowwise"]
    kernel = "rowwise" if rowwise is not None and (scaled is None or rowwise < _CLEARLY * scaled) else "scaled"
    log.info("fp8 product of %d x %d x %d: %s; taken: %s", _ROWS, _DEPTH, _COLUMNS, times, kernel)
    return kernel


def _seconds(name: str, device: torch.device) -> float | None:
    """Median milliseconds of a product; None where the kernel is not there or gives something else."""
    # of its own: the run's random numbers stay what they were
    random = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.randn(size, _DEPTH, device=device, generator=random).to(torch.float8_e4m3fn) for size in (_ROWS, _COLUMNS)
    )
    b = b.t()
    try:
        out = _product(name, a, b)
        wanted = a[:64].float() @ b[:, :64].float()
        if not torch.allclose(out[:64, :64].float(), wanted, rtol=0.05, atol=1.0):
            return None
        return statistics.median(_milliseconds(name, a, b) for _ in range(_TIMES))
    except RuntimeError as error:
        log.debug("fp8 kernel %s: %s", name, error)
        return None


def _product(name: str, a: Tensor, b: Tensor) -> Tensor:
    ones = ((), ()) if name == "scaled" else ((a.shape[0], 1), (1, b.shape[1]))
    scale_a, scale_b = (torch.ones(shape, device=a.device) for shape in ones)
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


def _milliseconds(name: str, a: Tensor, b: Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    _product(name, a, b)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
