"""Lists rules about checkpointing, quantisation and block swap."""

from __future__ import annotations

from backend.config.checkpointing import PARTITIONING
from backend.config.rules.rule import Rule, no_effect
from backend.config.schema import by_path

MEMORY_RULES: tuple[Rule, ...] = (
    no_effect(
        "memory.checkpointing_kind",
        "training.gradient_checkpointing",
        (True,),
        "gradient checkpointing is off",
    ),
    Rule(
        ("memory.activation_memory_budget", "compile.compile"),
        lambda budget, on: budget is not None and not on,
        "activation_memory_budget needs compile: it is the compiler that chooses what to keep",
        "Turn compile.compile on, or take activation_memory_budget out and use training.gradient_checkpointing",
    ),
    *(
        Rule(
            ("memory.activation_memory_budget", f"network.{name}"),
            lambda budget, dropout: budget is not None and dropout > 0,
            f"activation_memory_budget can't be used with {name}: torch's compiler may draw the dropout anew when it "
            "recomputes, so that gradients would not belong to the loss",
            f"Take activation_memory_budget out and turn training.gradient_checkpointing on, or set {name} to 0",
        )
        for name in ("network_dropout", "rank_dropout", "module_dropout")
    ),
    Rule(
        (
            "memory.activation_memory_budget",
            "compile.compile",
            "training.gradient_checkpointing",
            "memory.checkpointing_kind",
        ),
        lambda budget, on, checkpointing, kind: budget is not None and on and checkpointing and kind != "auto",
        "activation_memory_budget saves next to nothing under checkpointing_kind {checkpointing_kind}",
        "Set memory.checkpointing_kind to auto, or take activation_memory_budget out",
        "warning",
    ),
    Rule(
        ("memory.activation_memory_budget", "compile.compile", "compile.compile_backend"),
        lambda budget, on, backend: budget is not None and on and backend not in PARTITIONING,
        "activation_memory_budget has no effect: {compile_backend} keeps what the model keeps",
        "Set compile.compile_backend to inductor, or take activation_memory_budget out",
        "warning",
    ),
    # quantised base
    Rule(
        ("memory.base_compute", "memory.base_quantization"),
        lambda compute, kind: compute != "bf16" and kind not in ("none", compute),
        "{base_compute} products need weights kept as {base_compute}, not {base_quantization}",
        "Set base_quantization to {base_compute}, or base_compute to bf16",
    ),
    # swap, and kinds of networks
    Rule(
        ("memory.swap_ring", "memory.blocks_to_swap"),
        lambda ring, count: ring != by_path()["memory.swap_ring"].default and not count,
        "swap_ring has no effect: no blocks are swapped",
        "Set blocks_to_swap above 0, or take swap_ring out",
        "warning",
    ),
    Rule(
        ("memory.blocks_to_swap", "memory.swap_ring"),
        lambda count, ring: 0 < count <= ring,
        "swapping {blocks_to_swap} saves nothing: the card has a buffer for each of {swap_ring}, which stay there",
        "Set blocks_to_swap above {swap_ring}, or to 0",
        "warning",
    ),
)
