"""Exchanges between the processes of a run: the mean of gradients, and what the first one decides."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from backend.base.errors import Failed
from backend.memory.seeds import generator

log = logging.getLogger(__name__)

COMPARE_STEPS = 100
"""Steps between two looks at all processes: their memory, and their weights, equal unless GPUs compute differently."""

# The others wait in it while the first process validates, draws or saves; a process that ends is noticed at once.
_PATIENCE = timedelta(days=30)
_BUCKET = 1 << 24
"""Numbers that are exchanged at once; larger tensors go by themselves."""
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_NOTICED_S = 10.0
"""Seconds in which a connection that broke is known to be that of a process that ended."""
_LOOK_S = 0.05


@dataclass(kw_only=True, slots=True)
class Ranks:
    """The processes that train together, as one of them sees them. One by itself exchanges nothing."""

    rank: int = 0
    count: int = 1
    failure: Callable[[], Failed | None] = lambda: None
    """Why another process has ended; None while all live, or where nobody looks after them."""
    stop: bool = False
    """Whether the run stops here, as all know."""
    ended: bool = False
    """Whether the run ends before its length, as all know."""
    torn: bool = False
    """Whether an exchange of gradients was broken off: the weights are then of no whole step."""
    _gradients: dist.ProcessGroup | None = None
    _exchanged: torch.cuda.Event | None = None
    _left: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this process is the run's."""
        return self.rank == 0

    def join(
        self, file: str, device: torch.device, identity: str, arithmetic: str, check: Callable[[], object]
    ) -> None:
        """Wait until all are ready to train, and connect them.

        file: of the first process's making, in which they find each other. identity: of what this process trains.
        arithmetic: device and number formats in words. Failed where one of the two differs between them. check: called
        while it waits.
        """
        if self.count == 1:
            return
        # nobody on the network shall reach them
        if sys.platform in _LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
        store = dist.FileStore(file, self.count)
        own = [hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(), arithmetic]
        store.set(f"ready {self.rank}", json.dumps(own))
        for other in range(self.count):
            while not store.check([f"ready {other}"]):
                check()
                self._raise_failure()
                time.sleep(_LOOK_S)
            digest, computes = json.loads(store.get(f"ready {other}"))
            if computes != arithmetic:
                text = f"Process {other} computes {computes}, and process {self.rank} {arithmetic}."
                remedy = "Choose GPUs of one kind with CUDA_VISIBLE_DEVICES, or set num_processes to 1."
                raise Failed(text, remedy)
            if digest != own[0]:
                text = f"Process {other} has other pictures or another base model than process {self.rank}."
                raise Failed(text, "Leave the files alone while a run starts, and start again.")
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.count, timeout=_PATIENCE)
        if device.type == "cuda" and dist.is_nccl_available():
            self._gradients = dist.new_group(backend="nccl")
        log.info("Process %d of %d is ready on %s", self.rank, self.count, device)

    def share(self, value: Any) -> Any:
        """What the first process gives, in all."""
        if self.count == 1:
            return value
        holder = [value]
        self._call(dist.broadcast_object_list, holder, 0)
        return holder[0]

    def gather(self, value: Any) -> list[Any]:
        """What each process gives, by its number."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            self._call(dist.all_gather_object, values, value)
        return values

    def agree(self, stop: bool, ended: bool) -> None:
        """Let all know what the first process decides about the next step. The others' arguments count nothing."""
        word = torch.tensor([stop, ended], dtype=torch.uint8)
        if self.count > 1:
            self._call(dist.broadcast, word, 0)
        self.stop, self.ended = map(bool, word.tolist())

    @torch.no_grad()
    def average(self, parameters: Sequence[nn.Parameter]) -> None:
        """Set each gradient to the mean of all processes'. One that is missing in some counts as zeros there.

        What no process reached keeps no gradient, so that its optimizer state stays as it is.
        """
        if self.count == 1:
            return
        reached = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        # Besides what it tells: from here on all processes have come so far, and none waits on its GPU for a dead one.
        self._call(dist.all_reduce, reached, dist.ReduceOp.MAX)
        gradients = []
        for parameter, by_any in zip(parameters, reached.tolist(), strict=True):
            if by_any and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            flat = bucket[0].reshape(-1) if len(bucket) == 1 else torch.cat([each.reshape(-1) for each in bucket])
            self._sum(flat)
            parts = [part.view_as(each) for part, each in zip(_split(flat, bucket), bucket, strict=True)]
            torch._foreach_copy_(bucket, parts)
        if gradients and gradients[0].is_cuda:
            self._exchanged = torch.cuda.Event()
            self._exchanged.record()

    @torch.no_grad()
    def mean(self, value: Tensor) -> Tensor:
        """The mean of all processes' `value`."""
        if self.count == 1:
            return value
        mean = value.detach().clone()
        self._sum(mean)
        return mean

    def _sum(self, tensor: Tensor) -> None:
        """The mean over the processes, in place."""
        self._call(dist.all_reduce, tensor, group=self._gradients)
        tensor.div_(self.count)

    def seed_step(self, seed: int, step: int) -> None:
        """Let optimizers that draw numbers (stochastic rounding) draw the same ones in all processes."""
        if self.count > 1:
            torch.manual_seed(generator(seed, "optimizer", step).initial_seed())

    @torch.no_grad()
    def compare(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether all processes hold the same weights, bit by bit; if not, they take those of the first one."""
        if self.count == 1:
            return True
        sums = torch.stack([_bits(parameter.detach()).sum(dtype=torch.int64) for parameter in parameters]).cpu()
        all_sums = [torch.empty_like(sums) for _ in range(self.count)]
        self._call(dist.all_gather, all_sums, sums)
        if all(torch.equal(each, sums) for each in all_sums):
            return True
        for parameter in parameters:
            value = parameter.detach().cpu()
            self._call(dist.broadcast, value, 0)
            parameter.copy_(value)
        return False

    def _call(self, exchange: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        """Exchange something. Failed with the reason where another process has ended."""
        self._raise_failure()
        try:
            exchange(*arguments, **more)
        except RuntimeError:
            # its connection closes a moment before its end is known
            until = time.monotonic() + _NOTICED_S
            while time.monotonic() < until:
                self._raise_failure()
                time.sleep(_LOOK_S)
            raise

    def _raise_failure(self) -> None:
        failure = self.failure()
        if failure is not None:
            raise failure

    def break_off(self) -> None:
        """Give up an exchange on the GPU that waits for a process that has ended. Called from any thread."""
        exchanged, group = self._exchanged, self._gradients
        if self._left or group is None or exchanged is None or exchanged.query():
            return
        self.torn = True
        log.warning("The exchange of gradients is broken off: a process has ended in the middle of it")
        group._get_backend(torch.device("cuda")).abort()

    def leave(self) -> None:
        """Let go of the others. Never raises: it is called at every end."""
        self._left = True
        if self.count > 1 and dist.is_initialized():
            # a GPU's driver may wait for one that is dead, and the run's end must not
            thread = threading.Thread(target=_disconnect, name="disconnect", daemon=True)
            thread.start()
            thread.join(_NOTICED_S)


def _disconnect() -> None:
    try:
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - the run's result is safe already
        log.debug("The processes could not be disconnected: %s", error)


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as whole numbers, whose sum is exact."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors of one format that are exchanged at once, in an order that is the same in all processes."""
    buckets: list[list[Tensor]] = []
    filled = 0
    for tensor in tensors:
        size = tensor.numel()
        if not buckets or filled + size > _BUCKET or buckets[-1][0].dtype != tensor.dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += size
    return buckets


def _split(flat: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return flat.split([each.numel() for each in like])
