"""What a run's denoiser is compiled and recorded with, as its settings say."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

from backend.compile import cache as compile_cache
from backend.compile.helper import compile_model
from backend.compile.recompute import within_graphs
from backend.compile.recording import record
from backend.compile.report import CompileReport
from backend.compile.selection import Choice
from backend.compile.telemetry import Telemetry
from backend.config.paths import resolve
from backend.config.schema import Config
from backend.inputs import Inputs
from backend.memory import checkpointing
from backend.refused import Refused
from backend.runs.events import EventWriter
from backend.shapes.runtime import ShapeRuntime
from backend.trained import Trained

log = logging.getLogger(__name__)


def cache_folder(cfg: Config) -> Path | None:
    """The compile cache's folder, made. Refused when it can't be written and is needed; else None."""
    chosen = cfg.compile.compile_cache_dir
    try:
        return compile_cache.prepare(resolve(chosen) if chosen else None)
    except OSError as error:
        text = str(error).partition(";")[0]
        if not cfg.compile.compile:
            log.info("%s; nothing is compiled in this run", text)
            return None
        remedy = "Set it to a folder on this machine that you can write."
        raise Refused(text, remedy, "compile.compile_cache_dir") from error


def compile_blocks(
    inputs: Inputs, trained: Trained, shapes: ShapeRuntime, cache: Path | None, stack: ExitStack
) -> tuple[Telemetry | None, CompileReport | None]:
    """Compile the denoiser's blocks through the one helper; (None, None) when compile is off."""
    chosen = inputs.cfg.compile
    if not chosen.compile or cache is None:
        return None, None
    telemetry = Telemetry(cache).start()
    stack.callback(telemetry.stop)
    recompute = within_graphs(inputs.cfg)
    checkpointing.set_activation_budget(inputs.cfg.memory.activation_memory_budget, recompute)
    rows = [Choice(row.blocks, row.backend, row.compile) for row in chosen.compile_blocks or ()]
    try:
        report = compile_model(
            trained.denoiser,
            inputs.code.block_lists(trained.denoiser),
            backend=chosen.compile_backend,
            mode=chosen.compile_mode,
            dynamic=shapes.compile_dynamic(chosen.compile_dynamic),
            fullgraph=chosen.compile_fullgraph,
            cache_size_limit=chosen.compile_cache_size_limit or inputs.plan.recompile_limit,
            disable_linear=chosen.disable_linear,
            swapping=trained.swap is not None,
            scope=chosen.compile_scope,
            selection=rows or None,
            checkpointing=inputs.cfg.training.gradient_checkpointing,
            recompute=recompute,
        )
    except ValueError as error:
        raise Refused.from_error(error, "compile.compile") from error
    if report.disable_linear:
        telemetry.judge_nothing()
        return telemetry, report
    graphs = inputs.plan.graphs
    planned = {*graphs.training, *graphs.validation, *graphs.sampling}
    log.info("compile: cache %s, signature %s", cache, compile_cache.signature(compile_cache.made_of(cache), planned))
    telemetry.warm(
        inputs.plan.planned_graphs,
        training=graphs.training_graphs * graphs.backends,
        no_grad=graphs.no_grad_graphs * graphs.backends,
    )
    return telemetry, report


def record_passes(inputs: Inputs, trained: Trained, events: EventWriter) -> None:
    """Have training passes recorded as CUDA graphs, where that is set and there is a card."""
    if not inputs.cfg.compile.cuda_graphs:
        return
    if inputs.device.type != "cuda":
        text = f"cuda_graphs has no effect on {inputs.device.type}"
        events.write("warning", text=text, remedy="Set compile.cuda_graphs to false.")
        return
    remedy = "The run goes on without. Set compile.cuda_graphs to false, or send the log with this line."
    record(
        trained.denoiser,
        lambda why: events.write("warning", text=f"CUDA graphs could not be recorded: {why}", remedy=remedy),
    )
