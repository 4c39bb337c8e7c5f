"""How much memory the run uses, read without waiting for the device."""

from __future__ import annotations

import psutil
import torch


class Meter:
    """Reads memory in bytes, named as the columns of a step's row; on a CPU the RAM alone."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = psutil.Process()

    def read(self) -> dict[str, int]:
        """``ram`` = resident memory of this process. On CUDA also ``vram_allocated`` and ``vram_reserved`` by torch,
        ``vram_peak`` = the most allocated since the start, ``vram_total`` and ``vram_free`` of the card, all programs
        counted."""
        row = {"ram": self._process.memory_info().rss}
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            row |= {
                "vram_allocated": torch.cuda.memory_allocated(self._device),
                "vram_reserved": torch.cuda.memory_reserved(self._device),
                "vram_peak": torch.cuda.max_memory_allocated(self._device),
                "vram_total": total,
                "vram_free": free,
            }
        return row
