"""What this machine has: its NVIDIA cards, as the driver's own tool names them, and its RAM. Without torch."""

from __future__ import annotations

import logging
import shutil
import subprocess
from dataclasses import dataclass

import psutil

log = logging.getLogger(__name__)

_QUERY = "name,memory.total,memory.free,driver_version"


@dataclass(frozen=True)
class Card:
    """A card, its memory in bytes. free: what no other program holds. real: False for one that was only named."""

    name: str
    total: int
    free: int
    driver: str = ""
    real: bool = True


@dataclass(frozen=True)
class Ram:
    """Memory of the machine in bytes."""

    total: int
    available: int


def cards() -> list[Card]:
    """The NVIDIA cards of this machine; empty without a driver. Asked in a subprocess that takes some milliseconds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as wrong:
        log.info("nvidia-smi does not answer: %s", wrong)
        return []
    found = []
    for line in told.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[1].isdigit() and cells[2].isdigit():
            found.append(Card(cells[0], int(cells[1]) * 2**20, int(cells[2]) * 2**20, cells[3]))
    return found


def named_card(gigabytes: float) -> Card:
    """A card of so many GB, for a plan made on another machine; cards are named in units of 2**30 bytes."""
    total = int(gigabytes * 2**30)
    return Card(f"a card of {gigabytes:g} GB", total, total, real=False)


def ram() -> Ram:
    """RAM of this machine now."""
    memory = psutil.virtual_memory()
    return Ram(memory.total, memory.available)
