"""What SDXL's blocks and convolutions keep in memory. Without torch."""

from __future__ import annotations

from backend.models.sdxl.facts import LEVELS
from backend.models.unet.memory import memory

MEMORY = memory({"level1": 4, "level2": 1}, around=1_557_000, levels=LEVELS)
