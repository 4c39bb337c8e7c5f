"""Lists rules about what is compiled, how, and for which shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.base import compile_cache
from backend.base.paths import resolve
from backend.config.family_defaults import usual_shape_mode
from backend.config.graph_choice import RECORDING_MODES, mode_records
from backend.config.rules.rule import Rule, no_effect
from backend.families.table import FAMILIES

_RECORDING_PATHS = ("compile.compile_mode", "compile.compile", "compile.compile_backend", "compile.cuda_graphs")
_OFF_MODES = " or ".join(dict.fromkeys(RECORDING_MODES.values()))


def _backend_records(compile_: bool, backend: str, blocks: list[Any] | None) -> bool:
    """Whether torch's backend that records CUDA graphs by itself compiles any block."""
    return compile_ and "cudagraphs" in [backend, *(row.backend for row in blocks or [] if row.compile)]


def _unrecordable(paths: tuple[str, ...], broken: Callable[..., bool], why: str, remedy: str) -> tuple[Rule, Rule]:
    """What can't be recorded: an error with cuda_graphs on, a warning with a compile mode that records."""
    return (
        Rule(
            ("compile.cuda_graphs", *paths),
            lambda setting, *values: setting == "on" and broken(*values),
            f"cuda_graphs can't be used with {why}",
            f"{remedy[0].upper()}{remedy[1:]}, or set compile.cuda_graphs to auto",
        ),
        Rule(
            (*_RECORDING_PATHS, *paths),
            lambda mode, on, backend, setting, *values: (
                setting == "auto" and mode_records(on, mode, backend) and broken(*values)
            ),
            f"compile_mode {{compile_mode}} records nothing in this run: CUDA graphs can't be used with {why}",
            f"Set compile_mode to {_OFF_MODES}, or: {remedy}",
            "warning",
        ),
    )


def _mode(mode: str, family: str) -> str:
    """The shape mode with auto resolved."""
    return usual_shape_mode(family) if mode == "auto" else mode


def _classes(family: str) -> list[str]:
    """Names of a family's block classes."""
    return [block.name for block in FAMILIES[family].block_classes]


COMPILE_RULES: tuple[Rule, ...] = (
    Rule(
        (
            "compile.compile_backend",
            "compile.compile",
            "compile.compile_blocks",
            "training.gradient_accumulation_steps",
        ),
        lambda backend, on, blocks, accumulation: accumulation > 1 and _backend_records(on, backend, blocks),
        "the backend cudagraphs can't be used with gradient accumulation ({gradient_accumulation_steps}): the second "
        "backward pass overwrites memory that the first one still needs",
        "Set compile_backend to inductor, whose passes cuda_graphs records safely, or gradient_accumulation_steps to 1",
    ),
    Rule(
        (
            "compile.compile_backend",
            "compile.compile",
            "compile.compile_blocks",
            "training.gradient_accumulation_steps",
            "training.num_processes",
        ),
        lambda backend, on, blocks, *batches: batches == (1, 1) and _backend_records(on, backend, blocks),
        "the backend cudagraphs may be unsafe: validation and samples between steps can overwrite its memory",
        "Set compile_backend to inductor, whose passes cuda_graphs records safely",
        "warning",
    ),
    Rule(
        ("compile.compile_backend", "compile.compile", "compile.compile_blocks", "training.num_processes"),
        lambda backend, on, blocks, processes: processes > 1 and _backend_records(on, backend, blocks),
        "the backend cudagraphs can't be used with several processes ({num_processes}): what exchanges their gradients "
        "looks at the GPU while a pass is recorded",
        "Set compile_backend to inductor, or num_processes to 1",
    ),
    Rule(
        _RECORDING_PATHS,
        lambda mode, on, backend, setting: setting == "off" and mode_records(on, mode, backend),
        "compile_mode {compile_mode} needs CUDA graphs, but cuda_graphs is off: nothing is recorded",
        f"Set compile.cuda_graphs to auto, or compile_mode to {_OFF_MODES}",
        "warning",
    ),
    *_unrecordable(
        ("memory.blocks_to_swap",),
        lambda count: count > 0,
        "block swap ({blocks_to_swap} blocks): a recorded pass reads weights at fixed addresses",
        "set memory.blocks_to_swap to 0",
    ),
    *_unrecordable(
        ("training.kind",),
        lambda kind: kind == "full",
        "training kind full, with which it was never tried",
        "set training.kind to lora",
    ),
    *_unrecordable(
        ("training.gradient_checkpointing", "memory.checkpointing_kind"),
        lambda saves, kind: saves and kind == "offload",
        "checkpointing_kind offload: copies to RAM and back can't be recorded",
        "set memory.checkpointing_kind to auto",
    ),
    *(
        rule
        for name in ("network_dropout", "rank_dropout", "module_dropout")
        for rule in _unrecordable(
            ("training.gradient_checkpointing", f"network.{name}"),
            lambda saves, dropout: saves and dropout > 0,
            f"gradient checkpointing and {name}: the dropout of the second forward pass can't be recorded",
            f"set network.{name} to 0 or turn training.gradient_checkpointing off",
        )
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
        "compile_scope model can't be used with gradient checkpointing: torch skips the checkpointed blocks, so "
        "that nothing would be compiled",
        "Set compile.compile_scope to blocks, or turn training.gradient_checkpointing off",
    ),
    Rule(
        ("memory.blocks_to_swap", "compile.compile_scope", "compile.compile"),
        lambda count, scope, on: on and scope == "model" and count > 0,
        "blocks_to_swap can't be used with compile_scope model: one graph of the whole model needs all weights at once",
        "Set compile.compile_scope to blocks, or memory.blocks_to_swap to 0",
    ),
    Rule(
        ("compile.compile_fullgraph", "compile.compile", "compile.disable_linear"),
        lambda whole, on, linear: on and whole and linear == "on",
        "compile_fullgraph can't be used with disable_linear on: each linear layer is a graph break",
        "Set compile.disable_linear to auto, or compile_fullgraph to false",
    ),
    *(
        no_effect(f"compile.{name}", "compile.compile", (True,), "compile is off")
        for name in (
            "compile_backend",
            "compile_mode",
            "compile_dynamic",
            "compile_fullgraph",
            "compile_cache_size_limit",
            "compile_scope",
            "compile_blocks",
            "disable_linear",
        )
    ),
    no_effect("compile.compile_blocks", "compile.compile_scope", ("blocks",), "the whole model is compiled at once"),
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
            lambda setting, family, row=row, mode=mode: FAMILIES[family] is row and setting == mode,
            f"{row.title} can't have shape_mode {mode}: {reason}",
            "Set compile.shape_mode to auto, which is exact_buckets for this family: one or two graphs for all sizes",
        )
        for row in FAMILIES.values()
        for mode, reason in row.lacks_modes.items()
    ),
    Rule(
        ("compile.caption_buckets", "model.family"),
        lambda buckets, family: bool(buckets) and FAMILIES[family].fixed_text_length,
        "caption_buckets has no effect: {family} always reads text of one length",
        "Remove caption_buckets",
        "warning",
    ),
    Rule(
        ("compile.static_token_count", "compile.shape_mode", "model.family"),
        lambda count, mode, family: count is not None and _mode(mode, family) != "static",
        "static_token_count has no effect: this shape mode pads nothing",
        "Set compile.shape_mode to static where the family can have it, or remove static_token_count",
        "warning",
    ),
    Rule(
        ("compile.compile_dynamic", "compile.shape_mode", "compile.compile_profile", "model.family"),
        lambda dynamic, mode, profile, family: (
            profile == "custom" and dynamic != "auto" and _mode(mode, family) in ("dynamic", "exact_buckets")
        ),
        "compile_dynamic {compile_dynamic} has no effect: the shape mode {shape_mode} sets it",
        "Set compile_dynamic to auto, or shape_mode to off (or static, where the family can have it)",
        "warning",
    ),
    Rule(
        ("compile.compile_cache_dir", "compile.compile"),
        lambda folder, on: on and folder is not None and compile_cache.path_problem(resolve(folder)) is not None,
        "compilers may fail with paths that are long or have spaces or non-English letters: {compile_cache_dir}",
        "Choose a short folder without spaces, or leave compile_cache_dir empty for Monotile's own",
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
