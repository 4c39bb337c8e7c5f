"""Reads what this machine has: its NVIDIA GPUs, as the driver's own tool names them, and its RAM. Without torch."""

from __future__ import annotations

import logging
import shutil
import subprocess
from dataclasses import dataclass

import psutil

log = logging.getLogger(__name__)

_QUERIES = ("name,memory.total,memory.free,driver_version,compute_cap", "name,memory.total,memory.free,driver_version")
"""What the driver's tool is asked; drivers before 510 don't know of the first one."""

PRODUCT_CAPABILITY = {"int8": (8, 0), "fp8": (8, 9)}
"""Compute capability from which on a GPU multiplies in this format."""


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
    capability: tuple[int, int] | None = None
    """Compute capability; None where it is not known."""


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
    output = _asked(tool)
    gpus = []
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) in (4, 5) and cells[1].isdigit() and cells[2].isdigit():
            capability = _version(cells[4]) if len(cells) == 5 else None
            sizes = (int(cells[1]) * 2**20, int(cells[2]) * 2**20)
            gpus.append(Gpu(cells[0], *sizes, cells[3], capability=capability))
    return gpus


def _asked(tool: str) -> str:
    for query in _QUERIES:
        command = [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError) as wrong:
            log.info("nvidia-smi does not answer: %s", wrong)
    return ""


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def named_gpu(gigabytes: float) -> Gpu:
    """A GPU of so many GB (units of 2**30 bytes), for a plan made on another machine."""
    total = int(gigabytes * 2**30)
    return Gpu(f"a GPU of {gigabytes:g} GB", total, total, real=False)


def ram() -> Ram:
    """RAM of this machine now."""
    memory = psutil.virtual_memory()
    return Ram(memory.total, memory.available)
