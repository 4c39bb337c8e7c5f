"""Starts block swap by a run's settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import nn

from backend.config.schema import Config
from backend.memory.block_swap import BlockSwap
from backend.runs.events import EventWriter
from backend.runs.events.kinds import SwapEvent

log = logging.getLogger(__name__)


def swap_blocks(
    denoiser: nn.Module,
    running_order: Mapping[str, Sequence[nn.Module]],
    cfg: Config,
    device: torch.device,
    events: EventWriter,
    stack: ExitStack,
) -> BlockSwap:
    """Swap as many blocks as the settings say until `stack` ends, and tell what it costs: log and event `swap`."""
    memory = cfg.memory
    swap = BlockSwap(
        denoiser,
        running_order,
        memory.blocks_to_swap,
        device,
        ring=memory.swap_ring,
        pinned_limit_gb=memory.swap_pinned_limit_gb,
        trained=cfg.training.kind == "full",
    )
    stack.callback(swap.close)
    batches = cfg.training.gradient_accumulation_steps
    for line in swap.facts.lines(batches):
        log.info(line)
    limit = swap.facts.limit_seconds * batches
    events.write(SwapEvent(**swap.facts.to_dict(), batches=batches, step_limit_seconds=limit))
    return swap
