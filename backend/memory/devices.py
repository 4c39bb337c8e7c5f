"""Picks the device and number format of a run, and copies tensors there without making the device wait."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from backend.base.errors import Refused

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def pick_device() -> torch.device:
    """The first CUDA GPU, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def weight_dtype(setting: str, device: torch.device) -> torch.dtype:
    """The format of the frozen weights: as set, or for auto bf16 where the GPU computes in it, else fp32."""
    if setting != "auto":
        return DTYPES[setting]
    return torch.bfloat16 if _has_bf16(device) else torch.float32


def mixed_precision(setting: str, device: torch.device) -> str:
    """accelerate's name for the arithmetic: as set, or for auto bf16 where the GPU computes in it, else no.

    Refused for fp16 on a CPU, which has no loss scaling there.
    """
    if setting == "auto":
        return "bf16" if _has_bf16(device) else "no"
    if setting == "fp16" and device.type != "cuda":
        text = "mixed_precision fp16 needs a CUDA GPU, and none is found"
        raise Refused(text, "Set mixed_precision to auto.", "training.mixed_precision")
    return setting


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device. Pinned first: from pageable memory the copy would wait for the step before."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def text_to_device(text: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """A caption on the device; its length stays on the CPU, where it is read without waiting."""
    return {name: value if name == "length" else to_device(value, device) for name, value in text.items()}


def to_host(tensor: Tensor) -> Tensor:
    """A copy in memory of the host, made without waiting for the device."""
    if not tensor.is_cuda:
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _has_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
