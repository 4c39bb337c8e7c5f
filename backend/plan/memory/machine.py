"""Reads what this machine has: its NVIDIA GPUs, as the driver's own tool names them, and its RAM. Without torch."""

from __future__ import annotations

import logging
import shutil
import subprocess
from dataclasses import dataclass

import psutil

log = logging.getLogger(__name__)

_QUERY = "name,memory.total,memory.free,driver_version"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, or one that was only named."""

    name: str
    total: int
    """Bytes of memory."""
    free: int
    """Bytes that no other program holds."""
    driver: str = ""
    real: bool = True
    """False for one that was only named."""


@dataclass(frozen=True)
class Ram:
    """Memory of the machine in bytes."""

    total: int
    available: int


def installed_gpus() -> list[Gpu]:
    """The NVIDIA GPUs of this machine; empty without a driver. Asked in a subprocess that takes some milliseconds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as wrong:
        log.info("nvidia-smi does not answer: %s", wrong)
        return []
    gpus = []
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[1].isdigit() and cells[2].isdigit():
            gpus.append(Gpu(cells[0], int(cells[1]) * 2**20, int(cells[2]) * 2**20, cells[3]))
    return gpus


def named_gpu(gigabytes: float) -> Gpu:
    """A GPU of so many GB (units of 2**30 bytes), for a plan made on another machine."""
    total = int(gigabytes * 2**30)
    return Gpu(f"a GPU of {gigabytes:g} GB", total, total, real=False)


def ram() -> Ram:
    """RAM of this machine now."""
    memory = psutil.virtual_memory()
    return Ram(memory.total, memory.available)
