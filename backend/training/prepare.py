"""Prepares a run up to its first step: inputs, denoiser, LoRA, optimizer, the state to resume from, compile."""

from __future__ import annotations

import logging
import random
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin

from backend.base.errors import Refused
from backend.config.experts import sides_of, turns_of
from backend.config.layer_patterns import layers_digest
from backend.config.schema import Config
from backend.config.sections.training import TrainingSection
from backend.latents.identity import base_weights_identity
from backend.lora import loraplus
from backend.memory.meter import Meter
from backend.runs.events import EventWriter
from backend.runs.events.kinds import PhaseEvent, ResumedEvent, WarningEvent
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.runs.state_folder import newest_whole_state, stand_on
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
from backend.training.full_weights import rows_digest
from backend.training.gathering import compute_dtype, gather
from backend.training.inputs import Inputs
from backend.training.monitor import Monitor
from backend.training.position import Position, PositionCounter
from backend.training.product_choice import with_products
from backend.training.requests import Requests
from backend.training.run_context import RunContext
from backend.training.trainable import Trainable, load_trainable
from backend.training.trainer import Forward, Trainer

log = logging.getLogger(__name__)


def prepare(run: Run, cfg: Config, events: EventWriter, requests: Requests, resume: bool, stack: ExitStack) -> Trainer:
    """Everything up to the first step. stack: closes what has to be closed when the run ends, whatever the end.

    Refused, with problem and remedy, when something of it can't be done.
    """
    context = RunContext(run=run, events=events, requests=requests, stack=stack, started=time.time())
    state = _state(run, events) if resume else None
    seed(cfg.training)
    cache = cache_folder(cfg.compile)
    compiler = warmed_compiler(cfg)
    inputs = with_products(context, gather(cfg, events, requests), state is not None)
    inputs = with_checkpointing(context, inputs, state is not None)
    with oom.explained(events, inputs.expected):
        encode(inputs, events, requests)
    events.write(PhaseEvent(phase="load", done=0, total=None, eta_s=None))
    accelerator = make_accelerator(inputs)
    with oom.explained(events, inputs.expected):
        trainable = load_trainable(inputs, accelerator, events, stack)
    requests.check()
    fingerprint = _fingerprint(inputs, trainable)
    position = _resume(state, trainable, accelerator, fingerprint, events) if state else Position()
    generation = run.begin_generation(position.step)
    if state:
        events.write(ResumedEvent(step=position.step, generation=generation))
        log.info("Continuing at step %d, generation %d", position.step, generation)
    warn = partial(_warn, events)
    metrics = stack.enter_context(MetricsWriter(run, generation, position.step, tell=warn))
    counter = PositionCounter(position=position, batches_per_epoch=inputs.plan.steps.batches_per_epoch)
    if compiler is not None:
        compiler.wait()
    computed = compute_dtype(cfg.training, inputs.device, inputs.denoiser_loading.dtype)
    route = choose_attention(context, inputs, trainable.denoiser, computed, cache, state is not None)
    shapes = ShapeRuntime.from_plan(cfg, inputs.plan, inputs.device, computed, route)
    monitor = _compile(context, inputs, trainable, shapes, counter, cache)
    forward = Forward(
        accelerator=accelerator,
        denoiser=trainable.denoiser,
        family_predict=inputs.code.predict,
        shapes=shapes,
        guidance=cfg.model.guidance_scale,
    )
    return assemble(
        context=context,
        inputs=inputs,
        trainable=trainable,
        forward=forward,
        counter=counter,
        fingerprint=fingerprint,
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


def _resume(
    state: Path, trainable: Trainable, accelerator: Accelerator, fingerprint: Fingerprint, events: EventWriter
) -> Position:
    """Set what is trained, optimizer and generators to what `state` holds; its position."""
    parts = trainable.parts(accelerator)
    position = load_state(state, trainable.weights, parts, fingerprint, partial(_warn, events))
    stand_on(state)
    return position


def _fingerprint(inputs: Inputs, trainable: Trainable) -> Fingerprint:
    cfg, loading = inputs.cfg, inputs.denoiser_loading
    accumulation = cfg.training.gradient_accumulation_steps
    return Fingerprint(
        rank=0 if inputs.full else cfg.network.network_dim,
        alpha=0.0 if inputs.full else cfg.network.network_alpha,
        targets=trainable.weights.paths,
        optimizer=cfg.optimizer.optimizer,
        data=inputs.data_digest,
        base=" ".join([loading.quantize or "none", loading.compute]),
        layers=rows_digest(cfg.network) if inputs.full else layers_digest(inputs.sizes, cfg.network),
        batches=(cfg.dataset.batch_size, accumulation, inputs.plan.steps.batches_per_epoch),
        loraplus="on" if loraplus.ratios(cfg.network) else "off",
        merged=base_weights_identity(cfg),
        experts=_experts(cfg),
        kind=cfg.training.kind,
        parts=data_digests(cfg, inputs.plan),
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
