"""Wraps what recording needs of CUDA on the current GPU: graphs, streams, memory, random numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

DEVICE = "cuda"


def free_bytes() -> int:
    """What could still be allocated: of the GPU, and of the share that `memory.vram_limit_gb` leaves torch."""
    free, total = torch.cuda.mem_get_info()
    allocated = torch.cuda.memory_allocated()
    share = int(torch.cuda.get_per_process_memory_fraction() * total)
    return min(free + torch.cuda.memory_reserved() - allocated, share - allocated)


def passing_bytes() -> int:
    """The most that anything has held for a while so far: asked between two passes, what a pass needs at least."""
    return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()


def outside_bytes() -> int:
    """In use beside torch's allocator: a CUDA graph keeps the arguments of its kernels there."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def new_pool() -> Any:
    """Memory that recordings share."""
    return torch.cuda.graph_pool_handle()


def pool_bytes(pool: Any) -> int:
    """What a pool keeps, less what torch counts as allocated there."""
    segments = torch.cuda.memory_snapshot(pool, include_traces=False)
    return sum(segment["total_size"] - segment["allocated_size"] for segment in segments)


def wait() -> None:
    """Until the GPU has done all that was launched."""
    torch.cuda.synchronize()


def random_state() -> Tensor:
    """Of the GPU's generator."""
    return torch.cuda.get_rng_state()


def set_random_state(state: Tensor) -> None:
    """As `random_state` gave it."""
    torch.cuda.set_rng_state(state)


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    # One for all recordings: cuBLAS keeps a workspace for each stream and thread for good, 32 MiB on an H100.
    return torch.cuda.Stream(device)


@contextmanager
def aside() -> Iterator[None]:
    """On a stream of its own, as a capture runs: libraries make what they need there at their first call."""
    stream, usual = _side_stream(torch.cuda.current_device()), torch.cuda.current_stream()
    stream.wait_stream(usual)
    with torch.cuda.stream(stream):
        yield
    usual.wait_stream(stream)


def captured(pool: Any, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture what `function` launches: what replays it, and what it gave. Raises what the capture raises."""
    graph, usual = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # Threads of ours read the GPU's memory meanwhile: only this thread is held to what can be captured.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outputs = function()
    except BaseException:
        torch.cuda.set_stream(usual)
        _end_capture(pool)
        raise
    return graph.replay, outputs


def _end_capture(pool: Any) -> None:
    """End what torch leaves open of a capture that became void: its pool, and the generator's part in it."""
    with suppress(Exception):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
    with suppress(Exception), warnings.catch_warnings():
        # An empty graph is what is wanted: its end sets the generator right.
        warnings.simplefilter("ignore")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass


def release() -> None:
    """Give memory that is not in use back to the GPU, after a failure whose exception is gone."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
