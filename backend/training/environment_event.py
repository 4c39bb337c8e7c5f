"""Writes down what a run is trained with, so that its report can say it on another machine."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from backend.runs.events import EventWriter
from backend.runs.events.environment import EnvironmentEvent

_PACKAGES = ("torch", "diffusers", "transformers", "accelerate", "safetensors", "triton", "bitsandbytes",
             "flash-attn", "flash-attn-4")  # fmt: skip


def write_environment(events: EventWriter, device: torch.device) -> None:
    """Write the event of this process. Packages that are not installed are left out."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    is_gpu = device.type == "cuda"
    events.write(
        EnvironmentEvent(
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            device=torch.cuda.get_device_name(device) if is_gpu else f"{device.type} ({platform.machine()})",
            cuda=torch.version.cuda,
            packages=packages,
        )
    )
