"""Writes a safetensors file of any size, tensor by tensor: memory holds one of them, and the file is whole or absent.

The header, which has every tensor's place, is known from shapes and formats alone, so that it can be written first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.base.files import atomic_path
from backend.models.common.tensor_sources import DTYPES, LazyTensor

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNED = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written. read: gives it in any floating format and on any device when its turn comes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: LazyTensor, dtype: torch.dtype | None = None) -> Entry:
        """A tensor that is still in its file; in its own format where no other is given."""
        return cls(tuple(tensor.shape), dtype or tensor.dtype, tensor.read)

    @property
    def bytes(self) -> int:
        """Bytes that its numbers take."""
        return math.prod(self.shape) * self.dtype.itemsize


def file_bytes(entries: Mapping[str, Entry], metadata: Mapping[str, str] | None = None) -> int:
    """Bytes of the file that `write_streamed` makes of these."""
    return len(_header(entries, metadata or {})) + sum(entry.bytes for entry in entries.values())


def write_streamed(
    path: Path,
    entries: Mapping[str, Entry],
    metadata: Mapping[str, str] | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> None:
    """Write the tensors to the safetensors file `path`, whole or not at all.

    done: called with each name that is written.

    Raises:
        ValueError: a tensor has another shape than its entry, or a number that was finite is too large for its format.
        DiskFull, WriteFailed: as `backend.base.files.atomic_path`.
    """
    header = _header(entries, metadata or {})
    with atomic_path(path, file_bytes(entries, metadata)) as temporary, temporary.open("wb") as stream:
        stream.write(header)
        for name, entry in entries.items():
            value = entry.read()
            if tuple(value.shape) != entry.shape:
                raise ValueError(f"{name} is {list(value.shape)} and not {list(entry.shape)}")
            stream.write(_raw(name, value, entry.dtype))
            done(name)


def _raw(name: str, value: Tensor, dtype: torch.dtype) -> Any:
    """The numbers of a tensor in the format `dtype`, as bytes."""
    cast = value.detach().to("cpu", dtype)
    if cast.dtype != value.dtype and cast.dtype.is_floating_point:
        # formats of 8 bits have no test of their own
        lost = ~torch.isfinite(cast.float()) & torch.isfinite(value.detach().to("cpu").float())
        if lost.any():
            raise ValueError(f"{name} has values too large for {_NAMES[dtype]}")
    return cast.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _header(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, entry in entries.items():
        place = [start, start + entry.bytes]
        table[name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": place}
        start = place[1]
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text
