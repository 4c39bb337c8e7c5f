"""Compiles a preview's denoiser with the helper that training uses, and counts graphs beyond those that sizes need."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from backend.base.errors import Refused
from backend.compile.block_selection import BlockChoice
from backend.compile.compile_report import CompileReport
from backend.compile.model_compiler import compile_model
from backend.compile.recompile_reasons import InForce
from backend.compile.telemetry import CompileStats, Telemetry
from backend.compile.warm_up import CompilerWarmUp
from backend.config.schema import Config
from backend.plan.graphs import SPARE_GRAPHS, TORCH_LIMIT, GraphCounter, Shape
from backend.plan.trained_blocks import graph_variants
from backend.preview.base import PreviewBase
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.compile_setup import cache_folder, warmed_compiler

_SHAPES = 32
"""Sizes that a preview has room for in the modes that need a graph for each."""


@dataclass(kw_only=True, slots=True)
class Compiled:
    """What was compiled, and the graphs that were expected so far."""

    report: CompileReport
    telemetry: Telemetry | None
    counter: GraphCounter
    classes: int
    """Graphs that a new shape costs: one a block class and backend, and a set of layers with a LoRA in it."""
    variants: int
    """The most graphs that a shape costs in one class."""

    @classmethod
    def off(cls) -> Compiled:
        """Nothing is compiled."""
        return cls(
            report=CompileReport(asked=False), telemetry=None, counter=GraphCounter("off"), classes=0, variants=0
        )

    def expect(self, shape: Shape) -> None:
        """A pass of this shape comes: a graph for it is none too many."""
        if self.telemetry is not None and self.counter.call(shape, training=False):
            self.telemetry.expect(self.classes, self.variants)

    def stats(self) -> CompileStats:
        """Counts as they are now."""
        return CompileStats() if self.telemetry is None else self.telemetry.poll()


def ready_compiler(cfg: Config) -> CompilerWarmUp | None:
    """The compiler being readied while text is encoded and the model loads; None where nothing will be compiled."""
    if cache_folder(cfg.compile) is None:
        return None
    return warmed_compiler(cfg)


def compile_denoiser(
    base: PreviewBase, denoiser: nn.Module, shapes: ShapeRuntime, compiler: CompilerWarmUp | None, stack: ExitStack
) -> Compiled:
    """Compile the blocks as the settings say; called last, after LoRA and block swap.

    compiler: what `ready_compiler` gave, which is waited for. stack: ends the telemetry.
    """
    settings = base.cfg.compile
    if compiler is not None:
        compiler.wait()
    cache = cache_folder(settings)
    if not settings.compile or cache is None:
        return Compiled.off()
    # graphs of a pipeline that was open before have other layers
    torch._dynamo.reset()
    lists = base.code.block_lists(denoiser)
    variants = [_variants(blocks) for blocks in lists.values() if len(blocks)]
    backends = sum(count for _, count in graph_variants(base.cfg, base.facts.narrowed(base.files), {}))
    shown = 1 if base.mode == "dynamic" else _SHAPES
    trims = shapes.caption_buckets is not None
    telemetry = Telemetry(cache, in_force=InForce(shapes.mode == "static", trims, True)).start()
    stack.callback(telemetry.stop)
    rows = [BlockChoice(row.blocks, row.backend, row.compile) for row in settings.compile_blocks or ()]
    try:
        report = compile_model(
            denoiser,
            lists,
            backend=settings.compile_backend,
            mode=settings.compile_mode,
            dynamic=shapes.compile_dynamic(settings.compile_dynamic),
            fullgraph=settings.compile_fullgraph,
            cache_size_limit=max(TORCH_LIMIT, sum(variants) * shown + SPARE_GRAPHS),
            disable_linear=settings.disable_linear,
            scope=settings.compile_scope,
            selection=rows or None,
        )
    except ValueError as error:
        raise Refused.from_error(error, "compile.compile") from error
    telemetry.expect_plan(0, training=0, no_grad=0)
    more = sum(each - 1 for each in variants)
    mode: Any = shapes.mode
    return Compiled(
        report=report,
        telemetry=telemetry,
        counter=GraphCounter(mode, settings.compile_dynamic),
        classes=backends + more,
        variants=max(variants, default=1),
    )


def _variants(blocks: nn.ModuleList) -> int:
    """How many different sets of layers with a LoRA the blocks of a class have."""
    return len({tuple(name for name, each in block.named_modules() if hasattr(each, "lora_A")) for block in blocks})
