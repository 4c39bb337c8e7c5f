"""Prepares a run up to its first step: inputs, denoiser, LoRA, optimizer, the state to resume from, compile."""

from __future__ import annotations

import logging
import os
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin

from backend.base.errors import Refused
from backend.compile.warm_up import CompilerWarmUp
from backend.config.experts import sides_of, turns_of
from backend.config.layer_patterns import layers_digest
from backend.config.schema import Config, with_values
from backend.config.sections.training import TrainingSection
from backend.latents.identity import base_weights_identity
from backend.lora import loraplus
from backend.memory.meter import Meter
from backend.runs.events import EventWriter
from backend.runs.events.kinds import PhaseEvent, ResumedEvent, WarningEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.runs.state_folder import newest_whole_state, stand_on
from backend.shapes.attention_routes import make_route
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training import oom
from backend.training.assembly import assemble
from backend.training.attention_choice import choose_attention
from backend.training.checkpoint import Fingerprint, load_state
from backend.training.checkpointing_choice import with_checkpointing
from backend.training.compile_progress import CompileProgress
from backend.training.compile_setup import cache_folder, compile_blocks, record_passes, warmed_compiler
from backend.training.data_digests import data_digests
from backend.training.encoding import encode
from backend.training.environment_event import write_environment
from backend.training.full_weights import rows_digest
from backend.training.gathering import compute_dtype, gather
from backend.training.inputs import Inputs
from backend.training.monitor import Monitor
from backend.training.position import Position, PositionCounter
from backend.training.product_choice import with_products
from backend.training.ranks.group import Ranks
from backend.training.ranks.others import Go, Others
from backend.training.requests import Requests
from backend.training.run_context import RunContext
from backend.training.trainable import Trainable, load_trainable
from backend.training.trainer import Forward, Trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What a run trains, standing where it stands."""

    accelerator: Accelerator
    trainable: Trainable
    fingerprint: Fingerprint
    position: Position


def prepare(
    run: Run,
    cfg: Config,
    events: EventWriter,
    requests: Requests,
    resume: bool,
    stack: ExitStack,
    gpus: str | None = None,
) -> Trainer:
    """Everything up to the first step. stack: closes what has to be closed when the run ends, whatever the end.

    gpus: CUDA_VISIBLE_DEVICES that the run was started with, for the processes that train beside this one. Refused,
    with problem and remedy, when something of it can't be done.
    """
    ranks = Ranks(count=cfg.training.num_processes)
    context = RunContext(run=run, events=events, requests=requests, stack=stack, started=time.time(), ranks=ranks)
    state = _state(run, events) if resume else None
    seed(cfg.training)
    cache = cache_folder(cfg.compile)
    compiler = warmed_compiler(cfg)
    inputs = with_products(context, gather(cfg, events, requests), state is not None)
    inputs = with_checkpointing(context, inputs, state is not None)
    others = _start_others(context, inputs, gpus) if ranks.count > 1 else None
    write_environment(events, inputs.device)
    with oom.explained(events, inputs.expected):
        encode(inputs, events, requests)
    events.write(PhaseEvent(phase="load", done=0, total=None, eta_s=None))
    store = ""
    if others is not None:
        folder = stack.enter_context(TemporaryDirectory(prefix="monotile-", ignore_cleanup_errors=True))
        store = os.path.join(folder, "store")
        others.go(Go(store=store, state=None if state is None else str(state), products=inputs.product_way))
    loaded = load(context, inputs, store, state)
    step = loaded.position.step
    if state:
        stand_on(state)
    generation = run.begin_generation(step)
    if state:
        events.write(ResumedEvent(step=step, generation=generation))
        log.info("Continuing at step %d, generation %d", step, generation)
    metrics = stack.enter_context(MetricsWriter(run, generation, step, tell=partial(_warn, events)))
    return ready(context, inputs, loaded, compiler, cache, metrics, state is not None)


def _start_others(context: RunContext, inputs: Inputs, gpus: str | None) -> Others:
    """The other processes; they end with `context.stack`, and the run with the first of them that ends too early."""
    ranks = context.ranks
    if inputs.device.type == "cpu":
        text = f"num_processes is {ranks.count}, and there is no GPU: the processes share the cores of this machine."
        _warn(context.events, text, "Set num_processes to 1.")
    # what auto became by this GPU's free memory: in tiles or not decides which files of the cache are read
    tiling = {"memory.vae_tiling": "on" if inputs.tiled_encode else "off"}
    others = Others(context.run, with_values(inputs.cfg, tiling), gpus)
    context.stack.callback(others.end)
    context.stack.callback(ranks.leave)
    ranks.failure, others.on_failure = others.failure, ranks.break_off
    return others


def load(context: RunContext, inputs: Inputs, store: str, state: Path | None) -> Loaded:
    """Load what is trained, wait for the processes that train it too, and continue from `state`, if there is one.

    store: the file in which they find each other.
    """
    accelerator = make_accelerator(inputs)
    with oom.explained(context.events, inputs.expected):
        trainable = load_trainable(inputs, accelerator, context.events, context.stack)
    context.requests.check()
    fingerprint = _fingerprint(inputs, trainable)
    formats = str(inputs.dtype).removeprefix("torch.")
    arithmetic = f"on {inputs.device.type} in {formats}, mixed precision {inputs.precision}"
    context.ranks.join(store, inputs.device, repr(fingerprint), arithmetic, context.requests.check)
    position = Position()
    if state is not None:
        parts, warn = trainable.parts(accelerator), partial(_warn, context.events)
        position = load_state(state, trainable.weights, parts, fingerprint, warn)
        if context.ranks.count > 1 and position.micro:
            # of one process, stopped within a step: the gradients of its batches are made again by all
            position = position.without_step(inputs.plan.steps.batches_per_epoch)
            trainable.optimizer.zero_grad()
    return Loaded(accelerator=accelerator, trainable=trainable, fingerprint=fingerprint, position=position)


def ready(
    context: RunContext,
    inputs: Inputs,
    loaded: Loaded,
    compiler: CompilerWarmUp | None,
    cache: Path | None,
    metrics: MetricsWriter | None,
    resumed: bool = False,
) -> Trainer:
    """Compile, and put the trainer together. metrics: None in a process that only trains."""
    trainable, ranks = loaded.trainable, context.ranks
    steps = inputs.plan.steps
    counter = PositionCounter(
        position=loaded.position, batches_per_epoch=steps.batches_per_epoch, processes=steps.processes
    )
    if compiler is not None:
        compiler.wait()
    computed = compute_dtype(inputs.cfg.training, inputs.device, inputs.denoiser_loading.dtype)
    if ranks.is_first:
        route = choose_attention(context, inputs, trainable.denoiser, computed, cache, resumed)
        ranks.share(route.name)
    else:
        route = make_route(ranks.share(None), inputs.device, computed)
    shapes = ShapeRuntime.from_plan(inputs.cfg, inputs.plan, inputs.device, computed, route)
    monitor = _compile(context, inputs, trainable, shapes, counter, cache)
    forward = Forward(
        accelerator=loaded.accelerator,
        denoiser=trainable.denoiser,
        family_predict=inputs.code.predict,
        shapes=shapes,
        guidance=inputs.cfg.model.guidance_scale,
    )
    return assemble(
        context=context,
        inputs=inputs,
        trainable=trainable,
        forward=forward,
        counter=counter,
        fingerprint=loaded.fingerprint,
        metrics=metrics,
        monitor=monitor,
    )


def _compile(
    context: RunContext,
    inputs: Inputs,
    trainable: Trainable,
    shapes: ShapeRuntime,
    counter: PositionCounter,
    cache: Path | None,
) -> Monitor:
    """Compile the blocks and record passes, as set; what watches both."""
    telemetry, report = compile_blocks(inputs, trainable, shapes, cache, context.stack)
    recorder = record_passes(inputs, trainable, context.events)
    if telemetry is not None:
        if recorder is not None:
            recorder.compiled_seconds = lambda: telemetry.stats.seconds
        context.stack.enter_context(CompileProgress(telemetry=telemetry, events=context.events))
    return Monitor(
        events=context.events,
        position=counter.current,
        total_steps=inputs.plan.steps.steps,
        meter=Meter(inputs.device, recorder),
        resumed=counter.position.step > 0,
        telemetry=telemetry,
        report=report,
        plan=inputs.plan.graphs if inputs.plan.compile else None,
        swap=trainable.swap,
        recorder=recorder,
    )


def _state(run: Run, events: EventWriter) -> Path:
    """The state to resume from, with a warning for a newer one that is damaged. Refused when there is none."""
    newest = newest_whole_state(run.state_dir)
    if newest is None:
        raise Refused(f"The run {run.name} has no saved state to continue from", "Start a new run.")
    for state, damage in newest.damaged.items():
        text = (
            f"The saved state {state.name} is damaged: {damage} The run resumes from {newest.path.name}, saved before."
        )
        remedy = f"To keep the later steps, stop the run now and put the files of {state} back from a copy."
        _warn(events, text, remedy)
    return newest.path


def _fingerprint(inputs: Inputs, trainable: Trainable) -> Fingerprint:
    cfg, loading = inputs.cfg, inputs.denoiser_loading
    return Fingerprint(
        rank=0 if inputs.full else cfg.network.network_dim,
        alpha=0.0 if inputs.full else cfg.network.network_alpha,
        targets=trainable.weights.paths,
        optimizer=cfg.optimizer.optimizer,
        data=inputs.data_digest,
        base=" ".join([loading.quantize or "none", loading.compute]),
        layers=rows_digest(cfg.network) if inputs.full else layers_digest(inputs.sizes, cfg.network),
        batches=(cfg.dataset.batch_size, cfg.training.batches_per_step, inputs.plan.steps.batches_per_epoch),
        loraplus="on" if loraplus.ratios(cfg.network) else "off",
        merged=base_weights_identity(cfg),
        experts=_experts(cfg),
        kind=cfg.training.kind,
        parts=data_digests(cfg, inputs.plan),
        processes=cfg.training.num_processes,
    )


def _experts(cfg: Config) -> str:
    turns = turns_of(cfg)
    return " ".join(sides_of(cfg)) if turns is None else f"both, every {turns.every} steps"


def _warn(events: EventWriter, text: str, remedy: str = "") -> None:
    events.write(WarningEvent(text=text, remedy=remedy))
    log.warning("%s %s", text, remedy)


def make_accelerator(inputs: Inputs) -> Accelerator:
    """accelerate with this run's own settings: nothing from the environment, nothing from a run before it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accumulation = GradientAccumulationPlugin(
        num_steps=inputs.cfg.training.gradient_accumulation_steps,
        adjust_scheduler=False,
        sync_with_dataloader=False,
    )
    return Accelerator(
        mixed_precision=inputs.precision,
        gradient_accumulation_plugin=accumulation,
        cpu=inputs.device.type == "cpu",
    )


def seed(settings: TrainingSection) -> None:
    """Seed every generator that a step may draw from, and have torch compute deterministically where that is set."""
    random.seed(settings.seed)
    np.random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    if settings.deterministic:
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
