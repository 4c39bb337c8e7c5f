"""The frozen tensors of one block as one flat piece of host memory, and as views into a place of the same layout.

One flat piece is one transfer. The views are made once: a swapped parameter is for good a view into its place in the
ring, and only the bytes below it come and go. So its address, strides and identity never change, what autograd or a
compiled graph saved of it stays a view of the same bytes, and no graph is made anew.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# Kernels may assume more than an element's own alignment; 256 is what the CUDA allocator gives.
_ALIGNMENT = 256
_PAGE = mmap.PAGESIZE


@dataclass
class _Held:
    """A tensor that a block holds, under every name that it has inside of the block."""

    tensor: Tensor
    names: list[tuple[dict[str, Any], str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Piece:
    """One plain tensor's place in the flat memory."""

    offset: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """The tensor at this place of `flat` (uint8, contiguous).

        With a version counter of its own: a transfer changes the bytes below saved tensors on purpose, and brings the
        same ones back before they are read.
        """
        start = flat.storage_offset() + self.offset
        empty = torch.empty(0, dtype=self.dtype, device=flat.device)
        return empty.set_(flat.untyped_storage(), start // self.dtype.itemsize, self.size, self.stride)


def frozen(block: nn.Module) -> dict[int, Tensor]:
    """Frozen parameters and buffers of a block by identity."""
    return {id(held.tensor): held.tensor for held in _held(block, ())}


def _held(block: nn.Module, without: Collection[int]) -> list[_Held]:
    found: dict[int, _Held] = {}
    for module in block.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or tensor.requires_grad or id(tensor) in without or tensor.numel() == 0:
                    continue
                found.setdefault(id(tensor), _Held(tensor)).names.append((table, name))
    return list(found.values())


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that a tensor is made of: itself, or those inside of a subclass (torchao's weights)."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor.detach() if isinstance(tensor, nn.Parameter) else tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(tensor, name))


def _rebuilt(tensor: Tensor, take: Callable[[], Tensor]) -> Tensor:
    """`tensor` with each plain tensor in it replaced by what `take` gives next."""
    if not is_traceable_wrapper_subclass(tensor):
        return take()
    names, context = tensor.__tensor_flatten__()
    inner = {name: _rebuilt(getattr(tensor, name), take) for name in names}
    return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())


class HostBlock:
    """A block's frozen tensors: laid out at once, moved to flat host memory by `fill`, pointed to a place by `bind`.

    without: identities of tensors that stay where they are, since others use them too. Trained parameters are never
    part of it.
    """

    def __init__(self, name: str, block: nn.Module, without: Collection[int] = ()) -> None:
        self.name, self.block = name, block
        self._tensors = _held(block, without)
        self._pieces: list[_Piece] = []
        end = 0
        for held in self._tensors:
            for plain in _plain(held.tensor):
                offset = -(-end // _ALIGNMENT) * _ALIGNMENT
                # what preserve_format keeps: strides of dense tensors, such as a transposed weight
                stride = torch.empty_like(plain, device="meta").stride()
                self._pieces.append(_Piece(offset, plain.dtype, plain.size(), stride))
                end = offset + plain.numel() * plain.dtype.itemsize
        self.nbytes = end
        self.flat: Tensor | None = None
        self._unpin: weakref.finalize | None = None

    def pin(self, flat: Tensor) -> bool:
        """Pin `flat`, which `fill` gets next, where it lies; False when the system refuses.

        Until `unpin`, or until this block is gone: memory that is freed while it is pinned would hand its pages to
        whatever lies there next, and copies from there would read what was there before.
        """
        if not _pin(flat):
            return False
        self._unpin = weakref.finalize(self, _unpin, flat)
        # at the process's end the system takes everything back, and CUDA may be gone already
        self._unpin.atexit = False
        return True

    def unpin(self) -> None:
        """Undo `pin`, once no copy is under way."""
        if self._unpin is not None:
            self._unpin()

    @torch.no_grad()
    def fill(self, flat: Tensor) -> None:
        """Copy the tensors, wherever they are, to `flat` (uint8, at least `nbytes`, on the host), which is kept."""
        pieces = iter(self._pieces)
        for held in self._tensors:
            for plain in _plain(held.tensor):
                next(pieces).view(flat).copy_(plain)
        self.flat = flat

    @torch.no_grad()
    def bind(self, place: Tensor) -> None:
        """Make every tensor of the block a view into `place` (uint8); its old memory is freed."""
        pieces = iter(self._pieces)
        for held in self._tensors:
            if not is_traceable_wrapper_subclass(held.tensor):
                held.tensor.data = next(pieces).view(place)
                continue
            new = _rebuilt(held.tensor, lambda: next(pieces).view(place))
            if isinstance(held.tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=False)
            for table, name in held.names:
                table[name] = new
            held.tensor = new


def host_memory(nbytes: int) -> Tensor:
    """Uninitialised uint8 memory that shares its pages with nothing else, so that it can be pinned on its own."""
    size = -(-nbytes // _PAGE) * _PAGE
    raw = torch.empty(size + _PAGE, dtype=torch.uint8)
    start = -raw.data_ptr() % _PAGE
    return raw[start : start + size]


def _pin(flat: Tensor) -> bool:
    # torch's own pinned memory comes in powers of two: 1.07 GB for a block of 680 MB
    status = torch.cuda.cudart().cudaHostRegister(flat.data_ptr(), flat.numel(), 0)
    if int(status) == 0:
        return True
    try:
        # the refusal stays noted in CUDA and would be raised by whatever kernel comes next
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError:
        pass
    return False


def _unpin(flat: Tensor) -> None:
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(flat.data_ptr())
