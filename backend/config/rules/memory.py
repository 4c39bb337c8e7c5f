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
        "activation_memory_budget needs compile: the compiler chooses what to keep",
        "Turn compile.compile on, or remove activation_memory_budget and use training.gradient_checkpointing",
    ),
    *(
        Rule(
            ("memory.activation_memory_budget", f"network.{name}"),
            lambda budget, dropout: budget is not None and dropout > 0,
            f"activation_memory_budget can't be used with {name}: torch's compiler may choose another dropout when it "
            "computes a block again, so that the gradients would not match the loss",
            f"Remove activation_memory_budget and turn training.gradient_checkpointing on, or set {name} to 0",
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
        "activation_memory_budget saves almost nothing with checkpointing_kind {checkpointing_kind}",
        "Set memory.checkpointing_kind to auto, or remove activation_memory_budget",
        "warning",
    ),
    Rule(
        ("memory.activation_memory_budget", "compile.compile", "compile.compile_backend"),
        lambda budget, on, backend: budget is not None and on and backend not in PARTITIONING,
        "activation_memory_budget has no effect: the backend {compile_backend} does not use it",
        "Set compile.compile_backend to inductor, or remove activation_memory_budget",
        "warning",
    ),
    Rule(
        (
            "memory.checkpointing_kind",
            "training.gradient_checkpointing",
            "compile.compile",
            "compile.compile_backend",
            "compile.disable_linear",
            "network.network_dropout",
            "network.rank_dropout",
            "network.module_dropout",
        ),
        lambda kind, on, compiled, backend, linear, *dropouts: (
            kind == "attention"
            and on
            and compiled
            and (backend not in PARTITIONING or linear == "on" or any(drop > 0 for drop in dropouts))
        ),
        "checkpointing_kind attention is block here: compiled blocks keep attention only within their graphs, which "
        "needs the backend inductor, compiled linear layers and no dropout",
        "Set checkpointing_kind to block; attention works with inductor, compiled linear layers and no dropout",
        "warning",
    ),
    # quantised base
    Rule(
        ("memory.base_compute", "memory.base_quantization"),
        lambda compute, kind: compute != "bf16" and kind not in ("none", compute),
        "base_compute {base_compute} needs weights in {base_compute}, not in {base_quantization}",
        "Set base_quantization to {base_compute}, or base_compute to bf16",
    ),
    Rule(
        ("memory.base_products", "memory.base_compute"),
        lambda products, compute: products != "auto" and compute == "bf16",
        "base_products has no effect: base_compute is bf16",
        "Set base_compute to fp8 or int8, or base_products to auto",
        "warning",
    ),
    Rule(
        ("memory.base_products", "memory.base_compute", "memory.blocks_to_swap"),
        lambda products, compute, count: products == "fast" and compute != "bf16" and count > 0,
        "base_products fast doubles what each swapped block copies to the GPU",
        "Set base_products to small, or blocks_to_swap to 0",
        "warning",
    ),
    # swap, and kinds of networks
    Rule(
        ("memory.swap_ring", "memory.blocks_to_swap"),
        lambda ring, count: ring != by_path()["memory.swap_ring"].default and not count,
        "swap_ring has no effect: no blocks are swapped",
        "Set blocks_to_swap above 0, or remove swap_ring",
        "warning",
    ),
    Rule(
        ("memory.blocks_to_swap", "memory.swap_ring"),
        lambda count, ring: 0 < count <= ring,
        "swapping {blocks_to_swap} blocks saves nothing: the {swap_ring} swap buffers on the GPU need as much memory",
        "Set blocks_to_swap above {swap_ring}, or to 0",
        "warning",
    ),
)
