"""Rules about what is compiled, how, and the shapes it sees."""

from __future__ import annotations

from typing import Any

from backend.base import compile_cache
from backend.base.paths import resolve
from backend.config.rules.rule import Rule, no_effect
from backend.models.table import FAMILIES

_CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")


def _cuda_graphs(compile_: bool, mode: str, backend: str, blocks: list[Any] | None) -> bool:
    backends = [backend] + [row.backend for row in blocks or [] if row.compile]
    return compile_ and ((mode in _CUDA_GRAPH_MODES and backend == "inductor") or "cudagraphs" in backends)


_CUDA_GRAPH_PATHS = (
    "compile.compile_mode",
    "compile.compile",
    "compile.compile_backend",
    "compile.compile_blocks",
    "training.gradient_accumulation_steps",
)


def _classes(family: str) -> list[str]:
    """Names of a family's block classes."""
    return [block.name for block in FAMILIES[family].block_classes]


COMPILE_RULES: tuple[Rule, ...] = (
    Rule(
        _CUDA_GRAPH_PATHS,
        lambda mode, on, backend, blocks, accumulation: accumulation > 1 and _cuda_graphs(on, mode, backend, blocks),
        "CUDA graphs (compile_mode {compile_mode}, backend {compile_backend}) can't run with gradient accumulation "
        "({gradient_accumulation_steps}): the second backward pass overwrites what the first one still needs",
        "Set compile_mode to max-autotune-no-cudagraphs or default with the backend inductor, or "
        "gradient_accumulation_steps to 1",
    ),
    Rule(
        _CUDA_GRAPH_PATHS,
        lambda mode, on, backend, blocks, accumulation: accumulation == 1 and _cuda_graphs(on, mode, backend, blocks),
        "CUDA graphs (compile_mode {compile_mode}, backend {compile_backend}) are not proven safe here: validation and "
        "samples between steps may overwrite their memory",
        "Set compile_mode to max-autotune-no-cudagraphs or default, with the backend inductor",
        "warning",
    ),
    Rule(
        ("compile.cuda_graphs", "memory.blocks_to_swap"),
        lambda chosen, count: chosen == "on" and count > 0,
        "cuda_graphs can't be used with block swap ({blocks_to_swap} blocks): a recorded pass reads weights where they "
        "lay",
        "Set memory.blocks_to_swap to 0, or compile.cuda_graphs to auto",
    ),
    Rule(
        ("compile.cuda_graphs", "training.gradient_checkpointing", "memory.checkpointing_kind"),
        lambda chosen, saves, kind: chosen == "on" and saves and kind == "offload",
        "cuda_graphs can't be used with checkpointing_kind offload: what goes to the host and back can't be recorded",
        "Set memory.checkpointing_kind to auto, or compile.cuda_graphs to auto",
    ),
    *(
        Rule(
            ("compile.cuda_graphs", "training.gradient_checkpointing", f"network.{name}"),
            lambda chosen, saves, dropout: chosen == "on" and saves and dropout > 0,
            f"cuda_graphs can't be used with gradient checkpointing and {name}: what the second forward pass draws "
            "again can't be recorded",
            f"Set {name} to 0, turn training.gradient_checkpointing off, or set compile.cuda_graphs to auto",
        )
        for name in ("network_dropout", "rank_dropout", "module_dropout")
    ),
    Rule(
        ("compile.compile_mode", "compile.compile_backend"),
        lambda mode, backend: mode != "default" and backend != "inductor",
        "compile_mode {compile_mode} has no effect: only inductor has modes, not {compile_backend}",
        "Set compile_backend to inductor, or compile_mode to default",
        "warning",
    ),
    Rule(
        ("compile.compile_scope", "compile.compile", "training.gradient_checkpointing"),
        lambda scope, on, checkpointing: on and scope == "model" and checkpointing,
        "compile_scope model can't be used with gradient checkpointing: torch skips the checkpointed blocks, and "
        "nothing would be compiled",
        "Set compile.compile_scope to blocks, or turn training.gradient_checkpointing off",
    ),
    Rule(
        ("memory.blocks_to_swap", "compile.compile_scope", "compile.compile"),
        lambda count, scope, on: on and scope == "model" and count > 0,
        "blocks can't be swapped within one graph of the whole model, which needs all weights at once",
        "Set compile.compile_scope to blocks, or memory.blocks_to_swap to 0",
    ),
    Rule(
        ("compile.compile_fullgraph", "compile.compile", "compile.disable_linear", "memory.blocks_to_swap"),
        lambda whole, on, linear, count: on and whole and (linear == "on" or (linear == "auto" and count > 0)),
        "compile_fullgraph can't be kept: disable_linear {disable_linear} leaves linear layers out of the graphs, and "
        "each is a break",
        "Set compile.disable_linear to off, or compile_fullgraph to false",
    ),
    no_effect("compile.compile_blocks", "compile.compile_scope", ("blocks",), "the model is compiled as one"),
    Rule(
        ("compile.compile_blocks", "model.family"),
        lambda rows, family: [
            i for i, row in enumerate(rows or []) if row.blocks.split(":")[0] not in _classes(family)
        ],
        "the family {family} has no blocks of this name",
        "Name one of its block classes, such as " + ", ".join(dict.fromkeys(c for f in FAMILIES for c in _classes(f))),
        column="blocks",
    ),
    *(
        Rule(
            ("compile.shape_mode", "model.family"),
            lambda chosen, family, row=row, mode=mode: FAMILIES[family] is row and chosen == mode,
            f"{row.title} can't have shape_mode {mode}: {reason}",
            "Set compile.shape_mode to exact_buckets: one or two graphs for all sizes, without padding",
        )
        for row in FAMILIES.values()
        for mode, reason in row.lacks_modes.items()
    ),
    Rule(
        ("compile.caption_buckets", "model.family"),
        lambda buckets, family: bool(buckets) and FAMILIES[family].fixed_text_length,
        "caption_buckets has no effect: {family} always reads text of one length",
        "Take caption_buckets out",
        "warning",
    ),
    no_effect("compile.static_token_count", "compile.shape_mode", ("static",), "nothing is padded in this shape mode"),
    Rule(
        ("compile.compile_dynamic", "compile.shape_mode", "compile.compile_profile"),
        lambda dynamic, mode, profile: (
            profile == "custom" and dynamic != "auto" and mode in ("dynamic", "exact_buckets")
        ),
        "compile_dynamic {compile_dynamic} has no effect: the shape mode {shape_mode} says it for itself",
        "Set compile_dynamic to auto, or shape_mode to static or off",
        "warning",
    ),
    Rule(
        ("compile.compile_cache_dir", "compile.compile"),
        lambda chosen, on: on and chosen is not None and compile_cache.trouble(resolve(chosen)) is not None,
        "compilers stumble over paths with spaces or letters beyond ASCII, or over long ones: {compile_cache_dir}",
        "Choose a short folder without spaces, or leave compile_cache_dir empty: our own place is one",
        "warning",
    ),
    Rule(
        ("compile.compile_profile", "compile.compile"),
        lambda profile, on: profile != "custom" and not on,
        "the profile {compile_profile} has no effect: compile is off",
        "Turn compile on, or set compile_profile to custom",
        "warning",
    ),
)
