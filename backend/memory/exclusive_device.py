"""Moves the denoiser's weights to RAM while something else needs the GPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs import recording
from backend.compile.memory_shortage import is_out_of_vram

log = logging.getLogger(__name__)

_AGAIN_S = 1.0
"""Seconds between two looks for room on the GPU."""


@dataclass(kw_only=True, slots=True)
class Away:
    """What of a model waits in RAM. Dropping it instead of `come_back` leaves the model without weights."""

    device: torch.device
    began: float
    """As `time.monotonic`."""
    kept: list[tuple[torch.UntypedStorage, Tensor]]
    """Each storage with a copy of its bytes."""

    def come_back(self, patience_s: float = 0.0) -> None:
        """Bring everything back unchanged.

        patience_s: seconds for which a GPU that another process fills is waited for before that is an error.
        """
        _empty_cache(self.device)
        until = time.monotonic() + patience_s
        for storage, copy in self.kept:
            _fill(storage, copy.numel(), self.device, until)
            _bytes_of(storage).copy_(copy)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        size = sum(copy.numel() for _, copy in self.kept)
        log.info("The denoiser's %.1f GB waited in RAM for %.1f s", size / 2**30, time.monotonic() - self.began)


def leave(model: nn.Module, device: torch.device) -> Away:
    """Free what `model`'s frozen weights and buffers hold on `device`, until `Away.come_back`.

    The tensors stay the same objects at the same places in the model; only their storage is given up meanwhile, so
    that compiled blocks, optimizers and block swap notice nothing. Trained weights stay. Nothing may run the model
    meanwhile. Takes as much RAM as the weights have on the device. Recorded passes of the model give their memory back.
    """
    began = time.monotonic()
    recording.forget(model)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    kept = [(storage, _copy(storage)) for storage in _storages(model, device)]
    for storage, _ in kept:
        storage.resize_(0)
    _empty_cache(device)
    return Away(device=device, began=began, kept=kept)


@contextmanager
def offloaded(model: nn.Module, device: torch.device, patience_s: float = 0.0) -> Iterator[None]:
    """`leave` until the end of this. patience_s: as of `Away.come_back`."""
    away = leave(model, device)
    try:
        yield
    finally:
        away.come_back(patience_s)


def _fill(storage: torch.UntypedStorage, size: int, device: torch.device, until: float) -> None:
    """Give a storage its bytes again; where there is no room, again and again until `until` (`time.monotonic`)."""
    is_logged = False
    while True:
        try:
            storage.resize_(size)
            return
        except RuntimeError as error:
            if not is_out_of_vram(error) or time.monotonic() >= until:
                raise
            if not is_logged:
                log.warning("Another process fills the GPU; the denoiser waits in RAM until there is room: %s", error)
                is_logged = True
        time.sleep(_AGAIN_S)
        _empty_cache(device)


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _storages(model: nn.Module, device: torch.device) -> list[torch.UntypedStorage]:
    """Storages on `device` that hold frozen weights or buffers and nothing that is trained, each once."""
    trained = {_key(parameter) for parameter in model.parameters() if parameter.requires_grad}
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        storage = tensor.untyped_storage()
        if tensor.device == device and storage.nbytes() and _key(tensor) not in trained:
            storages.setdefault(_key(tensor), storage)
    return [storage for storage in storages.values() if storage.resizable()]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _copy(storage: torch.UntypedStorage) -> Tensor:
    """The bytes of a storage in ordinary memory of the host."""
    return torch.empty(storage.nbytes(), dtype=torch.uint8).copy_(_bytes_of(storage))
