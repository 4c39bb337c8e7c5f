"""Reads how much memory the run and other programs use, without waiting for the device."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import torch

from backend.config.packages import load_problem

if TYPE_CHECKING:
    from backend.compile.cuda_graphs.recording import Recorder

log = logging.getLogger(__name__)

_EVERY_S = 1.0
"""Seconds between two questions to the driver: a step may be much shorter."""


class Meter:
    """Reads memory in bytes, named as the columns of a step's row; on a CPU the RAM alone."""

    def __init__(self, device: torch.device, recorder: Recorder | None = None) -> None:
        """recorder: keeps memory for its recordings that torch does not count as allocated."""
        self._device = device
        self._recorder = recorder
        self._process = psutil.Process()
        self._driver = Driver.of(device) if device.type == "cuda" else None

    @property
    def device(self) -> torch.device:
        """The device whose memory is read."""
        return self._device

    @property
    def kept(self) -> int:
        """Bytes that recorded passes keep for themselves and torch does not count as allocated."""
        return 0 if self._recorder is None else self._recorder.kept

    def vram_peak(self) -> int:
        """The most bytes of a CUDA device allocated since the start, and what recorded passes keep beside that."""
        return torch.cuda.max_memory_allocated(self._device) + self.kept

    def read(self) -> dict[str, int]:
        """``ram`` = resident memory of this process, ``ram_available`` and ``ram_total`` of the machine.

        On CUDA also ``vram_allocated`` and ``vram_reserved`` by torch, ``vram_peak`` = `vram_peak`,
        ``vram_total`` and ``vram_free`` of the GPU, all programs counted, and ``vram_others`` = what other
        programs hold, where the driver tells (it does not in some containers and on WSL).
        """
        machine = psutil.virtual_memory()
        row = {
            "ram": self._process.memory_info().rss,
            "ram_available": machine.available,
            "ram_total": machine.total,
        }
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            row |= {
                "vram_allocated": torch.cuda.memory_allocated(self._device),
                "vram_reserved": torch.cuda.memory_reserved(self._device),
                "vram_peak": self.vram_peak(),
                "vram_total": total,
                "vram_free": free,
            }
            others = self._driver.others() if self._driver is not None else None
            if others is not None:
                row["vram_others"] = others
        return row


class Driver:
    """What NVIDIA's driver says about other programs on a GPU, by NVML (the package nvidia-ml-py, optional)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._asked = -_EVERY_S
        self._others: int | None = None

    @classmethod
    def of(cls, device: torch.device) -> Driver | None:
        """The driver's view of `device`; None where NVML is not there or does not know the GPU."""
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
        except ImportError:
            log.info("nvidia-ml-py %s: other programs' share of the GPU is not shown", load_problem("pynvml"))
        except Exception as error:  # noqa: BLE001 - NVML's errors are classes made at run time
            log.info("NVML says nothing about this GPU: %s", error)
        return None

    def others(self) -> int | None:
        """Bytes that other programs hold on the GPU; None where the driver does not tell processes apart."""
        now = time.monotonic()
        if now - self._asked >= _EVERY_S:
            self._asked = now
            self._others = None
            with suppress(Exception):
                self._others = self._ask()
        return self._others

    def _ask(self) -> int | None:
        nvml = self._nvml
        used = nvml.nvmlDeviceGetMemoryInfo(self._handle).used
        running = nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        ours = next((process.usedGpuMemory for process in running if process.pid == os.getpid()), None)
        return None if ours is None else max(0, used - ours)
