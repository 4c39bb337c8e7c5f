"""What large tensors leave in the heap goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from backend.memory.allocators import use_expandable_segments

ROOT = Path(__file__).resolve().parents[2]
_KEPT = """
import psutil, sys
from backend.memory.allocators import lower_mmap_threshold
if sys.argv[1] == "set":
    lower_mmap_threshold()
held = lambda: psutil.Process().memory_info().rss
large = b"1" * (30 << 20)  # glibc learns from its end that 30 MB may lie in the heap
del large
before, gone, stay = held(), [], []
for _ in range(12):
    gone.append(b"1" * (8 << 20))
    stay.append(b"1" * (64 << 10))
gone.clear()
print(held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_pieces_go_back_to_the_system_when_they_are_freed() -> None:
    def kept(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", _KEPT, how], cwd=ROOT, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert kept("set") < 10 << 20 < 20 << 20 < kept("not set")


@pytest.mark.skipif(sys.platform != "linux", reason="torch has it on Linux alone")
def test_torch_is_told_to_let_segments_grow_unless_a_person_says_otherwise() -> None:
    variables: dict[str, str] = {}
    use_expandable_segments(variables)
    assert variables == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    use_expandable_segments(own := {"PYTORCH_ALLOC_CONF": "backend:native"})
    assert own == {"PYTORCH_ALLOC_CONF": "backend:native"}
