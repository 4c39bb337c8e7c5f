"""Limits the threads by which torch computes on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on the calling thread alone until the block ends, where many small tensors are gone through.

    Each tensor waits for the last of several threads, which other work keeps waiting: beside three busy programs on two
    cores 1,200 matrices of a LoRA took 12 to 15 s to be checked on two threads, 4 to 5 on one.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
