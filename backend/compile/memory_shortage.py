"""Recognises exceptions that mean that the GPU, or the machine, has no memory left."""

from __future__ import annotations

import errno
import re

import torch

# What libraries say when the GPU is full, beside torch's own exception: cuBLAS, cuDNN, NVRTC, bitsandbytes, HIP.
_FULL = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
    r"cudaErrorMemoryAllocation|HIP out of memory|CUDA driver error: out of memory|Triton Error \[CUDA\]: out of memory"
)
# torch's allocator on Linux and on Windows; its pinned memory and mapped files by the system's own words.
_NO_RAM = re.compile(r"(?:can't allocate memory|not enough memory): you tried to allocate|Cannot allocate memory")
_PAGE_FILE = 1455


def is_out_of_vram(error: BaseException) -> bool:
    """Whether an exception says that the GPU is full."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _FULL.search(str(error)) is not None


def is_out_of_ram(error: BaseException) -> bool:
    """Whether an exception says that the machine has no RAM to give."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM or getattr(error, "winerror", None) == _PAGE_FILE
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_NO_RAM.search(str(error))))
