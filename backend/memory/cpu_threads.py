"""Limits the threads by which torch computes on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on the calling thread alone until the block ends, where many small tensors are gone through.

    Several threads gain nothing there, and each tensor waits for the last of them: beside other work on two cores
    1,200 matrices of a LoRA took 70 s to be checked, and 1.6 s on one thread.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
