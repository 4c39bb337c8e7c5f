"""From gathered inputs to a run that is ready to train: denoiser, LoRA, checkpointing, optimizer, compile, position."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin
from torch import nn

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.config.layer_patterns import layers_digest
from backend.config.schema import Config
from backend.dataset.controls import sample_items
from backend.families.files.hashes import ModelHashes
from backend.latents.identity import base_weights_identity
from backend.latents.loader import Loader
from backend.lora import loraplus
from backend.lora.inject import Lora
from backend.memory.meter import Meter
from backend.memory.sample_decoder import SampleDecoder
from backend.models.common.conditioning import Teller
from backend.plan.mode_plan import fitting_size
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training import oom
from backend.training.between_steps import Duties
from backend.training.checkpoint import Fingerprint, Position, load_state
from backend.training.compile_progress import CompilePulse
from backend.training.compile_setup import cache_folder, compile_blocks, record_passes
from backend.training.encoding import encode_again, free_memory
from backend.training.inputs import Inputs, compute_dtype, gather, tell_problems
from backend.training.job import Forward, Job
from backend.training.lora_metadata import file_metadata
from backend.training.monitor import Watch
from backend.training.requests import Asks
from backend.training.sampling import PromptText, Sampler, uses_negative
from backend.training.save_check import save_problems
from backend.training.saver import Saver
from backend.training.state_folder import Found, newest_state, stand_on
from backend.training.step_log import StepRecords
from backend.training.step_rows import row_writer
from backend.training.trainable import Trained, load_trained
from backend.training.validation import Example, Measured, validate

log = logging.getLogger(__name__)


@dataclass
class Surroundings:
    """Where a run's records go, and what a person asks of it. stack: closes all that has to be closed at its end."""

    run: Run
    events: EventWriter
    asks: Asks
    stack: ExitStack
    started: float


def prepare(run: Run, cfg: Config, events: EventWriter, asks: Asks, resume: bool, stack: ExitStack) -> Job:
    """Everything up to the first step. stack: closes what has to be closed when the run ends, whatever the end.

    Refused, with problem and remedy, when something of it can't be done.
    """
    around = Surroundings(run, events, asks, stack, time.time())
    state = _state(run, events) if resume else None
    _seed(cfg)
    cache = cache_folder(cfg)
    inputs = gather(cfg, events, asks)
    events.write("phase", phase="load", done=0, total=None, eta_s=None)
    accelerator = make_accelerator(cfg, inputs)
    with oom.explained(events, inputs.expected):
        trained = load_trained(inputs, accelerator, events, stack)
    asks.check()
    fingerprint = Fingerprint(
        cfg.network.network_dim,
        cfg.network.network_alpha,
        tuple(trained.lora.layers),
        cfg.optimizer.optimizer,
        inputs.data_digest,
        " ".join([inputs.denoiser_loading.quantize or "none", inputs.denoiser_loading.compute]),
        layers_digest(inputs.sizes, cfg.network),
        (cfg.dataset.batch_size, cfg.training.gradient_accumulation_steps, inputs.plan.steps.batches_per_epoch),
        "on" if loraplus.ratios(cfg.network) else "off",
        base_weights_identity(cfg),
    )
    position = Position()
    if state:
        position = load_state(state, trained.lora, trained.parts(accelerator), fingerprint, partial(_warn, events))
        stand_on(state)
    generation = run.begin_generation(position.step)
    if state:
        events.write("resumed", step=position.step, generation=generation)
        log.info("Going on at step %d, generation %d", position.step, generation)
    told = partial(_warn, events)
    metrics = stack.enter_context(MetricsWriter(run, generation, position.step, tell=told))
    dtype = compute_dtype(cfg, inputs.device, inputs.dtype)
    shapes = ShapeRuntime.from_plan(cfg, inputs.plan, inputs.device, dtype)
    telemetry, report = compile_blocks(inputs, trained, shapes, cache, stack)
    recorder = record_passes(inputs, trained, events)
    if telemetry is not None:
        stack.enter_context(CompilePulse(telemetry, events))
    total, planned = inputs.plan.steps.steps, inputs.plan.graphs if inputs.plan.compile else None
    meter = Meter(inputs.device, recorder)
    watch = Watch(events, position, total, meter, telemetry, report, planned, trained.swap, recorder)
    forward = Forward(accelerator, trained.denoiser, inputs.code.predict, shapes, cfg.model.guidance_scale)
    return _assemble(around, inputs, trained, forward, position, fingerprint, metrics, watch)


def _state(run: Run, events: EventWriter) -> Path:
    """The state to resume from; a newer one that is damaged is told. Refused when there is none."""
    found: Found | None = newest_state(run.state_dir)
    if found is None:
        raise Refused(f"The run {run.name} has no saved state to go on from", "Start a new run.")
    for state, wrong in found.damaged.items():
        text = (
            f"The saved state {state.name} is damaged: {wrong} The run resumes from {found.state.name}, saved before."
        )
        remedy = f"To keep the later steps, stop the run now and put the files of {state} back from a copy."
        events.write("warning", text=text, remedy=remedy)
        log.warning("%s %s", text, remedy)
    return found.state


def _warn(events: EventWriter, text: str, remedy: str = "") -> None:
    events.write("warning", text=text, remedy=remedy)
    log.warning("%s %s", text, remedy)


def _assemble(
    around: Surroundings,
    inputs: Inputs,
    trained: Trained,
    forward: Forward,
    position: Position,
    fingerprint: Fingerprint,
    metrics: MetricsWriter,
    watch: Watch,
) -> Job:
    """Put the job together: data, records, saving, duties."""
    cfg, run, lora, accelerator = inputs.cfg, around.run, trained.lora, forward.accelerator
    write = row_writer(run, metrics, cfg.logging.tensorboard, around.stack)
    records = StepRecords(position, write, watch.measure, scaled=accelerator.scaler is not None)
    loader = around.stack.enter_context(_loader(inputs, around.events))
    tell = Teller(inputs.device, trained.encoders.encode if trained.encoders is not None else None)
    hashes = ModelHashes(resolve(cfg.model.base_model) if cfg.model.base_model else None)
    around.stack.callback(hashes.stop)
    saver = Saver(
        run,
        around.events,
        cfg.saving,
        lora,
        position,
        trained.parts(accelerator),
        fingerprint,
        trained.names,
        lambda step: _metadata(inputs, lora, position, step, around.started) | hashes.metadata(),
        metrics.flush,
        to_use=trained.to_use,
    )
    tell_problems(save_problems(run, cfg, lora, trained.names), around.events)
    duties = _duties(around, inputs, trained, forward, tell, loader, position, records, saver, watch)
    free_memory()
    return Job(
        cfg,
        accelerator,
        forward,
        lora,
        trained.optimizer,
        trained.scheduler,
        loader,
        inputs.geometry,
        inputs.plan.steps.steps,
        position,
        records,
        saver,
        duties,
        around.asks,
        watch,
        inputs.objective,
        tell,
        inputs.expected,
        trained.norms,
        trained.ema,
    )


def _loader(inputs: Inputs, events: EventWriter) -> Loader:
    texts = None if inputs.trains_text else inputs.texts
    renew = partial(encode_again, inputs, events)
    return Loader(inputs.plan, inputs.latents, texts, inputs.cfg.dataset.loader_workers, inputs.code.conditions, renew)


def _duties(
    around: Surroundings,
    inputs: Inputs,
    trained: Trained,
    forward: Forward,
    tell: Teller,
    loader: Loader,
    position: Position,
    records: StepRecords,
    saver: Saver,
    watch: Watch,
) -> Duties:
    """What is due between steps: samples, validation, saving."""
    cfg = inputs.cfg
    sampler = _sampler(around, inputs, forward, tell, trained.lora, loader) if cfg.sampling.prompts else None
    if sampler is not None:
        sampler.drawn_until = position.step
    return Duties(
        cfg,
        position,
        inputs.plan.steps.steps,
        records,
        saver,
        around.asks,
        around.events,
        {name: _examples(loader, name) for name in inputs.plan.validation},
        lambda examples: _measure(inputs, forward, tell, examples),
        sampler.draw if sampler else None,
        watch.resume_training,
        watch.samples_asked,
        trained.to_use,
        {name: len(items) for name, items in inputs.plan.validation.items()},
    )


def make_accelerator(cfg: Config, inputs: Inputs) -> Accelerator:
    """accelerate with this run's own settings: nothing from the environment, nothing from a run before it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accumulation = GradientAccumulationPlugin(
        num_steps=cfg.training.gradient_accumulation_steps, adjust_scheduler=False, sync_with_dataloader=False
    )
    return Accelerator(
        mixed_precision=inputs.precision,
        gradient_accumulation_plugin=accumulation,
        cpu=inputs.device.type == "cpu",
    )


def _seed(cfg: Config) -> None:
    random.seed(cfg.training.seed)
    np.random.seed(cfg.training.seed)
    torch.manual_seed(cfg.training.seed)
    if cfg.training.deterministic:
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)


def _sampler(
    around: Surroundings, inputs: Inputs, forward: Forward, tell: Teller, lora: Lora, loader: Loader
) -> Sampler:
    def text(number: int, prompt: Any) -> PromptText:
        controls = sample_items(prompt, number)
        size = fitting_size(prompt.width, prompt.height, inputs.geometry)
        length, negative = prompt.text_length, None
        if uses_negative(prompt):
            negative = loader.drawn(prompt.negative_prompt, size, length, controls)
        return PromptText(loader.drawn(prompt.prompt, size, length, controls), negative)

    prompts = inputs.cfg.sampling.prompts
    return Sampler(
        around.run,
        around.events,
        around.asks,
        prompts,
        [text(number, prompt) for number, prompt in enumerate(prompts)],
        forward,
        inputs.objective.sampler,
        lora,
        _decoder(inputs, forward.denoiser),
        inputs.geometry,
        inputs.device,
        tell,
        inputs.code.guided,
    )


def _decoder(inputs: Inputs, denoiser: nn.Module) -> SampleDecoder:
    memory, expected = inputs.cfg.memory, inputs.expected
    given = expected.estimate.given if expected is not None else None
    return SampleDecoder(
        inputs.load_vae,
        denoiser,
        inputs.device,
        exclusive=given.turns if given is not None else memory.offload_by_turns == "on",
        tiled=given.tiled_decode if given is not None else memory.vae_tiling == "on",
        may_leave=memory.offload_by_turns != "off",
        may_tile=memory.vae_tiling != "off",
    )


def _examples(loader: Loader, name: str) -> Any:
    def read() -> Iterator[Example]:
        for batch in loader.validation(name):
            yield Example(batch.keys[0], batch.latents[0], batch.text[0])

    return read


def _measure(inputs: Inputs, forward: Forward, tell: Teller, examples: Iterable[Example]) -> Measured:
    chosen = inputs.cfg.validation
    return validate(
        examples,
        forward,
        objective=inputs.objective,
        sigmas=chosen.validation_sigmas,
        repeats=chosen.validation_repeats,
        seed=chosen.validation_seed,
        batch_size=inputs.plan.validation_batch,
        device=inputs.device,
        tell=tell,
    )


def _metadata(inputs: Inputs, lora: Lora, position: Position, step: int, started: float) -> dict[str, str]:
    buckets: dict[tuple[int, int], int] = {}
    for found in inputs.plan.fits:
        size = (found.bucket.width, found.bucket.height)
        buckets[size] = buckets.get(size, 0) + 1
    return file_metadata(
        inputs.cfg,
        inputs.plan.items,
        buckets,
        architecture=inputs.family.lora_architecture(inputs.base),
        base_model_version=inputs.family.lora_version,
        targets=len(lora.layers),
        step=step,
        steps=inputs.plan.steps,
        epoch=position.epoch,
        prediction=inputs.objective.name,
        started=started,
    )
