"""Writes a safetensors file one tensor after the other, so that a whole model never lies in memory a second time.

Format: https://github.com/huggingface/safetensors; its own writer wants all tensors on the host at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.base.files import atomic_path
from backend.models.common.tensor_sources import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNED = 8
"""Bytes that the header is a multiple of, as the format asks."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a file to be written. read: gives it, on any device, when its turn comes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> Stored:
        """A tensor as it is."""
        return cls(tuple(tensor.shape), tensor.dtype, lambda: tensor)

    @property
    def nbytes(self) -> int:
        """Bytes of it in the file."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def cast(name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value` in the format `dtype`, on the CPU. ValueError when a number that was finite is too large for it."""
    value = value.detach().to("cpu")
    result = value.to(dtype)
    if result.dtype != value.dtype and dtype.is_floating_point:
        # formats of 8 bits have no test of their own
        lost = ~torch.isfinite(result.float()) & torch.isfinite(value.float())
        if lost.any():
            raise ValueError(f"{name} has values too large for {_NAMES[dtype]}")
    return result


def write_tensors(path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None) -> None:
    """Write the file whole or not at all (`backend.base.files.atomic_path`).

    ValueError when a tensor is of another shape or format than was said of it. DiskFull or WriteFailed when the disk
    refuses it. What `Stored.read` raises passes on, and nothing is written.
    """
    # the widest formats first, so that each tensor begins at a multiple of its own width
    ordered = sorted(tensors.items(), key=lambda each: (-each[1].dtype.itemsize, each[0]))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for name, stored in ordered:
        end = place + stored.nbytes
        header[name] = {"dtype": _NAMES[stored.dtype], "shape": list(stored.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    text += b" " * (-len(text) % _ALIGNED)
    with atomic_path(path, expected_bytes=8 + len(text) + place) as temporary, temporary.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for name, stored in ordered:
            value = stored.read().detach()
            if tuple(value.shape) != stored.shape or value.dtype != stored.dtype:
                raise ValueError(
                    f"{name} is {list(value.shape)} {value.dtype}, not {list(stored.shape)} {stored.dtype}"
                )
            stream.write(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
