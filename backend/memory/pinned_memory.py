"""Computes how much of the machine's memory may be pinned."""

from __future__ import annotations

import sys

import psutil


def pinned_limit(limit_gb: float | None) -> int:
    """Bytes that may be pinned: what the settings say in GB, else 80 % of the memory, half of it on Windows."""
    if limit_gb is not None:
        return int(limit_gb * 1e9)
    return int(psutil.virtual_memory().total * (0.5 if sys.platform == "win32" else 0.8))
