"""Decides how gradient checkpointing works for a config: inside the compiled graphs or not. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.families.table import family

if TYPE_CHECKING:
    from backend.config.schema import Config

PARTITIONING = ("inductor", "aot_eager_decomp_partition")
"""Backends of torch.compile that choose what a graph keeps for its backward, by the activation budget."""


def within_graphs(cfg: Config) -> bool:
    """Whether this config's blocks recompute in their graphs, as the kinds auto and attention have it where they can.

    The backward graph then holds what a second forward would, less what no gradient needs (a block's last product, for
    one), fused with what uses it. Only a backend with torch's partitioner takes a block apart like that; with linear
    layers left out a block is many graphs, each of which would keep its inputs; and dropout might be different.
    """
    inside = cfg.memory.checkpointing_kind in ("auto", "attention")
    if not (cfg.training.gradient_checkpointing and inside and cfg.compile.compile):
        return False
    section = cfg.compile
    return (
        section.compile_backend in PARTITIONING
        and section.compile_scope == "blocks"
        and section.disable_linear != "on"
        and not cfg.network.drops
    )


def may_keep_attention(cfg: Config) -> bool:
    """Whether auto may be attention, where memory is left: of clips attention is most of a second forward.

    Not where a person has set how much the graphs keep.
    """
    kind, budget = cfg.memory.checkpointing_kind, cfg.memory.activation_memory_budget
    return kind == "auto" and budget is None and within_graphs(cfg) and family(cfg.model.family).video is not None


def checkpointing_of(cfg: Config) -> str:
    """What is done: off, block, attention, offload, selective, or graph, which is block within the compiled graphs."""
    kind = cfg.memory.checkpointing_kind
    if not cfg.training.gradient_checkpointing:
        return "off"
    if kind == "auto":
        return "graph" if within_graphs(cfg) else "block"
    if kind == "attention" and cfg.compile.compile and not within_graphs(cfg):
        return "block"
    return kind
