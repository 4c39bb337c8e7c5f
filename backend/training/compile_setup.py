"""Compiles a run's denoiser and has its passes recorded, as the settings say."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from backend.base import compile_cache
from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.compile import cache_key as cache_key
from backend.compile.block_selection import BlockChoice
from backend.compile.compile_report import CompileReport
from backend.compile.cuda_graphs import capture
from backend.compile.cuda_graphs.graph_trial import SPARE, Trial
from backend.compile.cuda_graphs.recording import Recorder, record
from backend.compile.model_compiler import compile_model
from backend.compile.recompile_reasons import InForce
from backend.compile.telemetry import Telemetry
from backend.compile.warm_up import CompilerWarmUp
from backend.config.checkpointing import within_graphs
from backend.config.graph_choice import RECORDING_MODES, recording_of
from backend.config.schema import Config
from backend.config.sections.compile import CompileSection
from backend.memory import checkpointing
from backend.memory.devices import pick_device
from backend.plan.memory.settings import unrecordable
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CudaGraphsEvent, WarningEvent
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.inputs import Inputs
from backend.training.trainable import Trainable

log = logging.getLogger(__name__)


def cache_folder(settings: CompileSection) -> Path | None:
    """The compile cache's folder, made. Refused when it can't be written and is needed; else None."""
    folder = settings.compile_cache_dir
    try:
        return cache_key.use_cache_folder(resolve(folder) if folder else None)
    except OSError as error:
        text = str(error).partition(";")[0]
        if not settings.compile:
            log.info("%s; nothing is compiled in this run", text)
            return None
        remedy = "Set it to a folder on this machine that you can write."
        raise Refused(text, remedy, "compile.compile_cache_dir") from error


def warmed_compiler(cfg: Config) -> CompilerWarmUp | None:
    """The compiler being readied beside the long work before the first step; None where inductor compiles nothing.

    Called when the cache folder is set, which the compiler's processes inherit.
    """
    if not cfg.compile.compile or cfg.compile.compile_backend != "inductor":
        return None
    return CompilerWarmUp(pick_device().type).start()


def compile_blocks(
    inputs: Inputs, trainable: Trainable, shapes: ShapeRuntime, cache: Path | None, stack: ExitStack
) -> tuple[Telemetry | None, CompileReport | None]:
    """Compile the denoiser's blocks through the one helper; (None, None) when compile is off."""
    settings = inputs.cfg.compile
    if not settings.compile or cache is None:
        return None, None
    static, trims = shapes.mode == "static", shapes.caption_buckets is not None
    telemetry = Telemetry(cache, in_force=InForce(static, trims, inputs.cfg.dataset.batch_size == 1)).start()
    stack.callback(telemetry.stop)
    recompute = within_graphs(inputs.cfg)
    memory = inputs.cfg.memory
    keeps = memory.checkpointing_kind == "attention"
    checkpointing.set_activation_budget(memory.activation_memory_budget, recompute, keeps)
    rows = [BlockChoice(row.blocks, row.backend, row.compile) for row in settings.compile_blocks or ()]
    try:
        report = compile_model(
            trainable.denoiser,
            inputs.code.block_lists(trainable.denoiser),
            backend=settings.compile_backend,
            mode=settings.compile_mode,
            dynamic=shapes.compile_dynamic(settings.compile_dynamic),
            fullgraph=settings.compile_fullgraph,
            cache_size_limit=inputs.plan.recompile_limit,
            disable_linear=settings.disable_linear,
            scope=settings.compile_scope,
            selection=rows or None,
            checkpointing=inputs.cfg.training.gradient_checkpointing,
            recompute=recompute,
        )
    except ValueError as error:
        raise Refused.from_error(error, "compile.compile") from error
    report.limit_is_set = settings.compile_cache_size_limit is not None
    report.may_pad = not static and inputs.plan.modes["static"].impossible is None
    graphs = inputs.plan.graphs
    if report.disable_linear:
        telemetry.expect_pieces(len(set(graphs.training)), len({*graphs.validation, *graphs.sampling}))
        return telemetry, report
    planned = {*graphs.training, *graphs.validation, *graphs.sampling}
    log.info("compile: cache %s, signature %s", cache, cache_key.signature(compile_cache.key_facts(cache), planned))
    telemetry.expect_plan(
        inputs.plan.planned_graphs,
        training=graphs.training_graphs,
        no_grad=graphs.no_grad_graphs,
    )
    return telemetry, report


def record_passes(inputs: Inputs, trainable: Trainable, events: EventWriter) -> Recorder | None:
    """Have training passes recorded as CUDA graphs, where that is set and there is a GPU; else None.

    Left to itself (auto), first asks whether this run's passes can be recorded and whether it pays.
    """
    recording = recording_of(inputs.cfg)
    if recording == "off":
        return None
    if inputs.device.type != capture.DEVICE:
        if recording == "on":
            events.write(WarningEvent(**_no_device(inputs.cfg, inputs.device.type)))
        return None
    hip = "it was never tried on ROCm" if torch.version.hip is not None else ""
    if recording == "auto" and (why := hip or unrecordable(inputs.cfg)):
        events.write(CudaGraphsEvent(state="left out", reason=why))
        log.info("CUDA graphs: %s", why)
        return None
    trial = None
    if recording == "auto":
        facts = inputs.family.memory
        trial = Trial(0 if facts is not None and facts.launch_bound else SPARE)
    return record(trainable.denoiser, partial(_write_recording, events, recording), trial)


def _no_device(cfg: Config, device: str) -> dict[str, str]:
    """The warning that nothing is recorded on this device, for the setting that asks for it."""
    if cfg.compile.cuda_graphs == "on":
        return {"text": f"cuda_graphs has no effect on {device}", "remedy": "Set compile.cuda_graphs to auto or off."}
    mode = cfg.compile.compile_mode
    text = f"compile_mode {mode} records no CUDA graphs on {device}: it is {RECORDING_MODES[mode]} here"
    return {"text": text, "remedy": f"Set compile.compile_mode to {RECORDING_MODES[mode]}."}


def _write_recording(events: EventWriter, recording: str, recorder: Recorder) -> None:
    """An event for what a recorder has done; a warning where it gave up what was set."""
    if recorder.failed:
        remedy = "The run continues without. Set compile.cuda_graphs to off, and this line is gone."
        if recording == "on":
            events.write(WarningEvent(text=f"CUDA graphs are left out: {recorder.failed}", remedy=remedy))
        events.write(CudaGraphsEvent(state="failed", reason=recorder.failed))
    elif recorder.trial is not None and recorder.trial.against:
        events.write(CudaGraphsEvent(state="left out", reason=recorder.trial.against))
    elif recorder.recordings:
        shapes, seconds = len(recorder.recordings), round(recorder.seconds, 3)
        facts = {"shapes": shapes, "seconds": seconds, "kept": recorder.kept, "reason": recorder.full}
        times = {"plain_ms": 1000 * recorder.plain_seconds, "replay_ms": 1000 * recorder.replay_seconds}
        facts |= {name: round(each, 3) for name, each in times.items()}
        events.write(CudaGraphsEvent(state="recorded", **facts))
