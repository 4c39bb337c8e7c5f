"""The meter: RAM everywhere, the card where there is one, other programs' share where the driver tells."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from backend.memory.meter import Driver, Meter
from backend.runs.metrics import COLUMNS


def test_without_a_card_the_machine_s_memory_is_read_and_nothing_else() -> None:
    row = Meter(torch.device("cpu")).read()
    assert set(row) == {"ram", "ram_available", "ram_total"} and set(row) <= set(COLUMNS)
    assert 0 < row["ram"] < row["ram_total"] == psutil.virtual_memory().total
    assert 0 < row["ram_available"] < row["ram_total"]
    held = torch.ones(64, 2**20, dtype=torch.uint8)
    assert Meter(torch.device("cpu")).read()["ram"] > row["ram"] + held.numel() // 2


class Nvml:
    """The three calls of NVML that are used, answering as on a card that two programs share."""

    def __init__(self, pids: list[int]) -> None:
        self.pids, self.asked = pids, 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802 - NVML's own name
        self.asked += 1
        return SimpleNamespace(used=9 * 2**30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any:  # noqa: N802 - NVML's own name
        return [SimpleNamespace(pid=pid, usedGpuMemory=6 * 2**30) for pid in self.pids]


def test_others_are_what_the_card_holds_beside_this_process() -> None:
    nvml = Nvml([os.getpid()])
    driver = Driver(nvml, None)
    assert driver.others() == 3 * 2**30 and driver.others() == 3 * 2**30
    assert nvml.asked == 1, "the driver is asked once a second, not once a step"


def test_where_the_driver_hides_processes_nothing_is_claimed() -> None:
    assert Driver(Nvml([1]), None).others() is None


@pytest.mark.gpu
def test_the_card_is_read() -> None:
    device = torch.device("cuda", 0)
    held = torch.ones(2**28, dtype=torch.uint8, device=device)
    row = Meter(device).read()
    assert held.numel() <= row["vram_allocated"] <= row["vram_reserved"] <= row["vram_total"] - row["vram_free"]
    assert row["vram_peak"] >= row["vram_allocated"]
    assert row.get("vram_others", 0) <= row["vram_total"]
