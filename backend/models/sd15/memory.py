"""What Stable Diffusion 1.5's blocks and convolutions keep in memory. Without torch."""

from __future__ import annotations

from backend.models.sd15.facts import LEVELS
from backend.models.unet.memory import memory

MEMORY = memory({"level0": 64, "level1": 16, "level2": 4, "mid": 1}, around=7_395_000, levels=LEVELS)
