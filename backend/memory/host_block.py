"""Keeps tensors of a block in one flat piece of host memory, and as views into a buffer of its layout.

One flat piece is one transfer. The views are made once: a swapped parameter is for good a view into its place in the
ring, and only the bytes below it come and go. So its address, strides and identity never change, what autograd or a
compiled graph saved of it stays a view of the same bytes, and no graph is made again.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Kernels may assume more than an element's own alignment; 256 is what the CUDA allocator gives.
_ALIGNMENT = 256
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class _Piece:
    """One tensor's place in the flat memory."""

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


def frozen(block: nn.Module, without: Collection[int] = ()) -> dict[int, Tensor]:
    """Frozen parameters and buffers of a block by identity, but for those of `without`."""
    return {key: tensor for key, tensor in held(block, without).items() if not tensor.requires_grad}


def held(block: nn.Module, without: Collection[int] = ()) -> dict[int, Tensor]:
    """All parameters and buffers of a block by identity, but for those of `without`."""
    tensors: dict[int, Tensor] = {}
    for module in block.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.numel() and id(tensor) not in without:
                tensors[id(tensor)] = tensor
    return tensors


class HostTensors:
    """Tensors laid out in one flat piece of host memory. written: a pass on the device changes them there.

    stored: when their newest values are in host memory, after they were changed on a device with streams.
    """

    def __init__(self, name: str, tensors: Sequence[Tensor], *, written: bool = False) -> None:
        self.name, self.written = name, written
        self._tensors = list(tensors)
        self._pieces: list[_Piece] = []
        end = 0
        for tensor in self._tensors:
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            # what preserve_format keeps: strides of dense tensors, such as a transposed weight
            stride = torch.empty_like(tensor, device="meta").stride()
            self._pieces.append(_Piece(offset, tensor.dtype, tensor.size(), stride))
            end = offset + tensor.numel() * tensor.dtype.itemsize
        self.nbytes = end
        self.flat: Tensor | None = None
        self.stored: torch.cuda.Event | None = None
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

    @property
    def pinned(self) -> int:
        """Bytes of its memory that are pinned."""
        return self.flat.numel() if self.flat is not None and self._unpin is not None else 0

    def unpin(self) -> None:
        """Undo `pin`, once no copy is under way."""
        if self._unpin is not None:
            self._unpin()

    @torch.no_grad()
    def fill(self, flat: Tensor) -> None:
        """Copy the tensors, wherever they are, to `flat` (uint8, at least `nbytes`, on the host), which is kept."""
        for tensor, piece in zip(self._tensors, self._pieces, strict=True):
            piece.view(flat).copy_(tensor)
        self.flat = flat

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors, in their order, as they lie in `flat` (uint8), which has this layout."""
        return [piece.view(flat) for piece in self._pieces]


class HostBlock(HostTensors):
    """A block's tensors: laid out at once, moved to flat host memory by `fill`, pointed to a place by `bind`.

    without: identities of tensors that stay where they are, since others use them too. Trained parameters are part of
    it only where `trained` says so.
    """

    def __init__(self, name: str, block: nn.Module, without: Collection[int] = (), *, trained: bool = False) -> None:
        self.block = block
        tensors = list((held if trained else frozen)(block, without).values())
        super().__init__(name, tensors, written=any(tensor.requires_grad for tensor in tensors))

    @torch.no_grad()
    def exchange(self, flat: Tensor) -> None:
        """Exchange the values of the tensors, where they lie, with those in `flat`, which has the same layout."""
        for tensor, place in zip(self._tensors, self.views(flat), strict=True):
            kept = tensor.detach().clone()
            tensor.detach().copy_(place, non_blocking=True)
            place.copy_(kept, non_blocking=True)

    def is_like(self, other: HostBlock) -> bool:
        """Whether the other block's tensors have the same formats, sizes and places."""
        return self._pieces == other._pieces

    @torch.no_grad()
    def bind(self, place: Tensor) -> None:
        """Make every tensor of the block a view into `place` (uint8); its old memory is freed."""
        for tensor, view in zip(self._tensors, self.views(place), strict=True):
            tensor.data = view

    def on_host(self) -> dict[int, Tensor]:
        """Identity of each of the block's tensors -> its values in host memory."""
        assert self.flat is not None
        return {id(tensor): view for tensor, view in zip(self._tensors, self.views(self.flat), strict=True)}

    @property
    def trained(self) -> list[nn.Parameter]:
        """Parameters among its tensors that are trained."""
        return [t for t in self._tensors if isinstance(t, nn.Parameter) and t.requires_grad]


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
