"""Declares what a tune may change: a table of factors, each with its choices for a config and what they change.

A choice without `changes` trains the same: outputs and gradients differ by rounding alone. Those with another
precision or other crops are tried only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.config.checkpointing import PARTITIONING
from backend.config.family_defaults import SHAPE_MODES, shape_mode_of
from backend.config.graph_choice import recording_of
from backend.config.schema import Config
from backend.families.table import family
from backend.plan.tune import expected_gains as gains
from backend.plan.tune.expected_gains import Surroundings, product_kinds

PRECISION, CROPS = "precision", "crops"
ALLOWED = (PRECISION, CROPS)
"""What may be asked for besides: words of `--allow`."""

_KERNELS = ("fa4", "fa3", "flash2", "varlen", "flex", "sdpa")
_BUDGETS = (0.75, 0.5, 0.25)
_SWAP_STEPS = 6
_MOST_BATCH = 16
_GROUPED = "other pictures share a batch"
_CROPPED = "pictures are cropped to other sizes"
_ROUNDED = "weights or products are rounded"

Values = Mapping[str, Any]
"""Setting (``section.name``) -> value."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings to change together."""

    values: Values
    words: str
    """What is set."""
    changes: str = ""
    """What is learnt otherwise, in a few words; empty for nothing."""
    slower_than: frozenset[str] = frozenset()
    """Words of choices that do part of this one's work, and need more memory: where one of them runs, it is faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """One thing that may differ."""

    name: str
    label: str
    choices: Callable[[Config, Surroundings], Iterator[Choice]]
    gain: Callable[[Config, Surroundings], float]
    """What it can be expected to save: the share of a step, from these settings."""
    needs: str = ""
    """The word of `--allow` without which its choices are not tried."""


def _compile(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    on = cfg.compile.compile
    yield Choice({"compile.compile": not on}, "compiled" if not on else "not compiled")
    if not (on and around.by_class) or cfg.compile.compile_blocks:
        return
    classes = [block.name for block in family(cfg.model.family).block_classes]
    for name in classes if len(classes) > 1 else ():
        row = {"blocks": name, "backend": None, "compile": False}
        yield Choice({"compile.compile_blocks": [row]}, f"{name} blocks not compiled")


def _attention(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    now = cfg.compile.attention
    if now != "auto":
        yield Choice({"compile.attention": "auto"}, "attention measured by the run")
    for name in _KERNELS if around.on_gpu else ():
        # auto took the one that was fastest by itself; the others may be faster within compiled blocks
        if name not in (now, around.attention):
            yield Choice({"compile.attention": name}, f"attention {name}")


def _products(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    if cfg.training.kind == "full":
        return
    memory = cfg.memory
    for kind in product_kinds(around):
        if memory.base_compute != kind:
            values = {"memory.base_quantization": kind, "memory.base_compute": kind}
            yield Choice(values, f"{kind} products", _ROUNDED)
    if memory.base_compute != "bf16":
        for products in ("fast", "small"):
            if products != memory.base_products:
                words = f"8-bit products {products}"
                yield Choice({"memory.base_products": products}, words, "gradients are rounded otherwise")


def _base(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    if cfg.training.kind == "full":
        return
    kinds = {"base in full precision": "none", "base in fp8": "fp8", "base in int8": "int8", "base in NF4": "nf4"}
    memory = cfg.memory
    now = memory.base_quantization if memory.base_compute == "bf16" else ""
    for words, kind in kinds.items():
        values = {"memory.base_quantization": kind, "memory.base_compute": "bf16"}
        if memory.base_products != "auto":
            values["memory.base_products"] = "auto"
        if kind != now:
            yield Choice(values, words, _ROUNDED if kind != "none" else "weights are not rounded")


def _swap(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    blocks, now = around.blocks or 0, cfg.memory.blocks_to_swap
    step = max(1, blocks // _SWAP_STEPS)
    # the last ones stay: the ring on the GPU is as large as they are
    counts = [*range(0, now, step), *(range(now + step, blocks - 1, step) if around.short else ())]
    before: set[str] = set()
    for count in counts:
        # so few need as much memory as the ring that they would pass through
        if count == 0 or count > cfg.memory.swap_ring:
            values: dict[str, Any] = {"memory.blocks_to_swap": count}
            if count == 0 and cfg.memory.swap_ring != 2:
                values["memory.swap_ring"] = 2
            words = f"{count} of {blocks} blocks swapped" if count else "no blocks swapped"
            yield Choice(values, words, slower_than=frozenset(before))
            before.add(words)


def _checkpointing(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    ways = list(_checkpointing_ways(cfg, around))
    training, memory = cfg.training, cfg.memory
    settings = (training.gradient_checkpointing, memory.checkpointing_kind, memory.activation_memory_budget)
    if not settings[0] and settings[2] is None:
        settings = (False, "auto", None)  # the kind has no effect
    now = next((way.words for way in ways if tuple(way.values.values()) == settings), "")
    yield from (way for way in ways if way.words != now and (around.short or now not in way.slower_than))


def _checkpointing_ways(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    """All ways, least work first."""
    names = ("training.gradient_checkpointing", "memory.checkpointing_kind", "memory.activation_memory_budget")
    before = {"no checkpointing"}
    yield Choice(dict(zip(names, (False, "auto", None), strict=True)), "no checkpointing")
    section = cfg.compile
    budgets = section.compile and section.compile_backend in PARTITIONING and section.compile_scope == "blocks"
    for share in _BUDGETS if budgets and not cfg.network.drops else ():
        words = f"activation budget {share:g}"
        yield Choice(dict(zip(names, (True, "auto", share), strict=True)), words, slower_than=frozenset(before))
        before.add(words)
    for kind, words in (("selective", "checkpointing selective"), ("attention", "checkpointing but attention")):
        less = frozenset({"no checkpointing"})
        yield Choice(dict(zip(names, (True, kind, None), strict=True)), words, slower_than=less)
        before.add(words)
    for kind, words in (("auto", "checkpointing"), ("offload", "checkpointing, inputs in RAM")):
        if kind != "offload" or around.on_gpu:
            yield Choice(dict(zip(names, (True, kind, None), strict=True)), words, slower_than=frozenset(before))
            before.add(words)


def _recording(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    if not around.on_gpu:
        return
    for value in ("off",) if recording_of(cfg) == "on" else ("on",):
        yield Choice({"compile.cuda_graphs": value}, f"CUDA graphs {value}")


def _shapes(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    now, lacks = shape_mode_of(cfg), family(cfg.model.family).lacks_modes
    if cfg.compile.static_token_count is not None:
        return  # with static it scales pictures down
    for mode in SHAPE_MODES:
        if mode != now and mode not in lacks and "exact_buckets" not in (now, mode):
            changes = _GROUPED if cfg.dataset.batch_size > 1 else ""
            yield Choice({"compile.shape_mode": mode}, f"shape mode {mode}", changes)


def _cropping_shapes(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    now, lacks = shape_mode_of(cfg), family(cfg.model.family).lacks_modes
    modes = [mode for mode in SHAPE_MODES if mode not in lacks and mode != now] if now == "exact_buckets" else []
    if now != "exact_buckets" and "exact_buckets" not in lacks:
        modes = ["exact_buckets"]
    for mode in modes:
        yield Choice({"compile.shape_mode": mode}, f"shape mode {mode}", _CROPPED)


def _batch(cfg: Config, around: Surroundings) -> Iterator[Choice]:
    batch, accumulation = cfg.dataset.batch_size, cfg.training.gradient_accumulation_steps
    whole = batch * accumulation
    for size in sorted((n for n in range(1, min(whole, _MOST_BATCH) + 1) if whole % n == 0), reverse=True):
        if size != batch:
            values = {"dataset.batch_size": size, "training.gradient_accumulation_steps": whole // size}
            yield Choice(values, f"batch {size} x {whole // size}", _GROUPED)


FACTORS: tuple[Factor, ...] = (
    Factor(name="compile", label="Compile", choices=_compile, gain=gains.of_compile),
    Factor(name="products", label="8-bit products", choices=_products, gain=gains.of_products, needs=PRECISION),
    Factor(name="swap", label="Block swap", choices=_swap, gain=gains.of_swap),
    Factor(name="checkpointing", label="Checkpointing", choices=_checkpointing, gain=gains.of_checkpointing),
    Factor(name="cuda_graphs", label="CUDA graphs", choices=_recording, gain=gains.of_recording),
    Factor(name="attention", label="Attention", choices=_attention, gain=gains.of_attention),
    Factor(name="batch", label="Batch and accumulation", choices=_batch, gain=gains.of_batch),
    Factor(name="base", label="Base weights", choices=_base, gain=gains.of_base, needs=PRECISION),
    Factor(name="shapes", label="Shape mode", choices=_shapes, gain=gains.of_shapes),
    Factor(
        name="crops",
        label="Shape mode with other crops",
        choices=_cropping_shapes,
        gain=gains.of_shapes,
        needs=CROPS,
    ),
)
"""Those of equal gain are tried in this order: what the others depend on first."""


def most_promising(factors: Sequence[Factor], cfg: Config, around: Surroundings) -> Factor:
    """The factor that can be expected to save most from these settings."""
    return max(factors, key=lambda factor: factor.gain(cfg, around))
