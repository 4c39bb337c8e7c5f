"""Moves the denoiser's weights to RAM while something else needs the GPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from backend.compile.cuda_graphs import recording

log = logging.getLogger(__name__)


@contextmanager
def offloaded(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Free what `model`'s frozen weights and buffers hold on `device`, and bring them back unchanged at the end.

    The tensors stay the same objects at the same places in the model; only their storage is given up meanwhile, so
    that compiled blocks, optimizers and block swap notice nothing. Trained weights stay. Nothing may run the model
    inside. Takes as much RAM as the weights have on the device. Recorded passes of the model give their memory back.
    """
    began = time.monotonic()
    recording.forget(model)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    kept = [(storage, _copy(storage)) for storage in _storages(model, device)]
    for storage, _ in kept:
        storage.resize_(0)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        for storage, copy in kept:
            storage.resize_(copy.numel())
            _bytes_of(storage).copy_(copy)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        size = sum(copy.numel() for _, copy in kept)
        log.info("The denoiser's %.1f GB waited in RAM for %.1f s", size / 2**30, time.monotonic() - began)


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
