"""Names the machine that a measurement holds for: its GPU or processor, and the torch that is installed. Torch-free."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from backend.plan.memory.machine import Gpu, installed_gpus

_CPU_FACTS = Path("/proc/cpuinfo")


def visible_gpus() -> list[Gpu]:
    """The NVIDIA GPUs that a trainer of this process sees, in its order, with what is free on each now."""
    gpus, visible = installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    numbers = [part.strip() for part in visible.split(",")]
    if any(number.startswith(("GPU-", "MIG-")) for number in numbers):
        return gpus[:1]  # named by what nvidia-smi was not asked for
    return [gpus[int(number)] for number in numbers if number.isdigit() and int(number) < len(gpus)]


@cache
def machine_words() -> tuple[str, ...]:
    """What a pace depends on beside the settings: name of the machine, GPU or processor, torch. Constant in a process.

    A driver's version is not among them: it changes often, and a step's time hardly with it.
    """
    gpus = visible_gpus()
    device = " + ".join(gpu.name for gpu in gpus) if gpus else f"{_processor()} x {psutil.cpu_count()}"
    return (platform.node(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), device, f"torch {_torch()}")


def device_words() -> str:
    """GPU or processor, and torch, for people."""
    return ", ".join(machine_words()[2:])


def _processor() -> str:
    try:
        lines = _CPU_FACTS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"
