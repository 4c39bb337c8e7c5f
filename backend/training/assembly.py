"""Assembles a run from its inputs: step log, loader, samples, validation, saver, trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from accelerate import Accelerator
from torch import nn

from backend.base.paths import resolve
from backend.config.schema import SamplePrompt
from backend.dataset.controls import sample_items
from backend.families.files.hashes import ModelHashes
from backend.families.spec import VideoRule
from backend.latents.loader import Loader
from backend.lora.inject import Lora
from backend.memory.sample_decoder import SampleDecoder
from backend.models.common.conditioning import ConditioningEncoder
from backend.plan.mode_plan import fitting_frames, fitting_size
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.training.between_steps import BetweenSteps, ValidationSet
from backend.training.checkpoint import Fingerprint
from backend.training.encoding import encode_again, free_memory
from backend.training.gathering import report_problems
from backend.training.inputs import Inputs
from backend.training.lora_metadata import file_metadata
from backend.training.monitor import Monitor
from backend.training.position import PositionCounter
from backend.training.requests import Requests
from backend.training.sampling import PromptText, Sampler, uses_negative
from backend.training.save_check import save_problems
from backend.training.saver import Saver
from backend.training.step_log import StepLog, row_writer
from backend.training.trainable import Trainable
from backend.training.trainer import Forward, Trainer
from backend.training.validation import Example, ValidationLoss, validate


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """Where a run's records go, and what a person asks of it."""

    run: Run
    events: EventWriter
    requests: Requests
    stack: ExitStack
    """Closes all that has to be closed at the run's end."""
    started: float
    """Unix seconds."""


def assemble(
    *,
    context: RunContext,
    inputs: Inputs,
    trainable: Trainable,
    forward: Forward,
    counter: PositionCounter,
    fingerprint: Fingerprint,
    metrics: MetricsWriter,
    monitor: Monitor,
) -> Trainer:
    """The trainer with all its parts. Refused where the run could not be saved."""
    cfg, accelerator = inputs.cfg, forward.accelerator
    encoders = trainable.encoders
    step_log = StepLog(
        write=row_writer(context.run, metrics, cfg.logging.tensorboard, context.stack),
        measure=monitor.measure,
        count_loss=counter.count_loss,
        loss_is_scaled=accelerator.scaler is not None,
    )
    loader = context.stack.enter_context(make_loader(inputs, context.events))
    conditioning = ConditioningEncoder(device=inputs.device, encode=None if encoders is None else encoders.encode)
    saver = _saver(context, inputs, trainable, counter, fingerprint, accelerator, metrics)
    report_problems(save_problems(context.run, cfg, trainable.lora, trainable.names), context.events)
    between_steps = _between_steps(
        context, inputs, trainable, forward, counter, conditioning, loader, step_log, saver, monitor
    )
    free_memory()
    return Trainer(
        training=cfg.training,
        max_grad_norm=cfg.optimizer.max_grad_norm,
        accelerator=accelerator,
        forward=forward,
        lora=trainable.lora,
        optimizer=trainable.optimizer,
        scheduler=trainable.scheduler,
        loader=loader,
        geometry=inputs.geometry,
        total_steps=inputs.plan.steps.steps,
        counter=counter,
        step_log=step_log,
        saver=saver,
        between_steps=between_steps,
        requests=context.requests,
        monitor=monitor,
        objective=inputs.objective,
        conditioning=conditioning,
        prior_loss_weight=cfg.loss.prior_loss_weight,
        expected=inputs.expected,
        norms=trainable.norms,
        ema=trainable.ema,
    )


def _saver(
    context: RunContext,
    inputs: Inputs,
    trainable: Trainable,
    counter: PositionCounter,
    fingerprint: Fingerprint,
    accelerator: Accelerator,
    metrics: MetricsWriter,
) -> Saver:
    model = inputs.cfg.model
    hashes = ModelHashes(resolve(model.base_model) if model.base_model else None)
    context.stack.callback(hashes.stop)
    return Saver(
        run=context.run,
        events=context.events,
        settings=inputs.cfg.saving,
        lora=trainable.lora,
        position=counter.current,
        parts=trainable.parts(accelerator),
        fingerprint=fingerprint,
        names=trainable.names,
        metadata=lambda step: _metadata(inputs, trainable, counter, step, context.started) | hashes.metadata(),
        flush=metrics.flush,
        to_use=trainable.to_use,
    )


def _between_steps(
    context: RunContext,
    inputs: Inputs,
    trainable: Trainable,
    forward: Forward,
    counter: PositionCounter,
    conditioning: ConditioningEncoder,
    loader: Loader,
    step_log: StepLog,
    saver: Saver,
    monitor: Monitor,
) -> BetweenSteps:
    cfg, sampler = inputs.cfg, None
    if cfg.sampling.prompts:
        sampler = _sampler(context, inputs, forward, conditioning, trainable.lora, loader, counter.position.step)
    return BetweenSteps(
        saving=cfg.saving,
        validation=cfg.validation,
        sampling=cfg.sampling,
        position=counter.current,
        total_steps=inputs.plan.steps.steps,
        step_log=step_log,
        saver=saver,
        requests=context.requests,
        events=context.events,
        validation_sets=_validation_sets(inputs, loader),
        measure=partial(measure, inputs, forward, conditioning),
        draw_samples=sampler.draw if sampler else None,
        resume_training=monitor.resume_training,
        note_requested_samples=monitor.note_requested_samples,
        to_use=trainable.to_use,
    )


def make_loader(inputs: Inputs, events: EventWriter) -> Loader:
    """The loader of the run's batches. Cache files that are lost are encoded again, with an event."""
    return Loader(
        plan=inputs.plan,
        latents=inputs.latents,
        text=None if inputs.trains_text else inputs.texts,
        workers=inputs.cfg.dataset.loader_workers,
        conditions=inputs.code.conditions,
        renew=partial(encode_again, inputs, events),
    )


def _sampler(
    context: RunContext,
    inputs: Inputs,
    forward: Forward,
    conditioning: ConditioningEncoder,
    lora: Lora,
    loader: Loader,
    resumed_at: int,
) -> Sampler:
    def text(number: int, prompt: SamplePrompt) -> PromptText:
        controls = sample_items(prompt, number)
        size = fitting_size(prompt.width, prompt.height, inputs.geometry)
        frames = fitting_frames(prompt.frames, inputs.geometry, inputs.family.video)
        length, negative = prompt.text_length, None
        if uses_negative(prompt):
            negative = loader.drawn(prompt.negative_prompt, size, length, controls, frames)
        return PromptText(loader.drawn(prompt.prompt, size, length, controls, frames), negative)

    prompts = inputs.cfg.sampling.prompts
    return Sampler(
        run=context.run,
        events=context.events,
        requests=context.requests,
        prompts=prompts,
        texts=[text(number, prompt) for number, prompt in enumerate(prompts)],
        predict=forward,
        sampler=inputs.objective.sampler,
        lora=lora,
        decoder=make_decoder(inputs, forward.denoiser),
        geometry=inputs.geometry,
        device=inputs.device,
        conditioning=conditioning,
        guide=inputs.code.guided,
        video=_video_rule(inputs),
        drawn_until=resumed_at,
    )


def _video_rule(inputs: Inputs) -> VideoRule | None:
    """How samples are made into clips: at the rate that the run's own clips are taken at."""
    rule, rate = inputs.family.video, inputs.cfg.video.target_fps
    return rule if rule is None or rate is None else replace(rule, rate=rate)


def make_decoder(inputs: Inputs, denoiser: nn.Module) -> SampleDecoder:
    """The decoder of samples, with the memory settings as they were resolved."""
    memory, resolved = inputs.cfg.memory, inputs.resolved_memory
    return SampleDecoder(
        load_vae=lambda: inputs.load_vae().for_decoding(),
        denoiser=denoiser,
        device=inputs.device,
        exclusive=resolved.turns if resolved is not None else memory.offload_by_turns == "on",
        tiled=resolved.tiled_decode if resolved is not None else memory.vae_tiling == "on",
        may_leave=memory.offload_by_turns != "off",
        may_tile=memory.vae_tiling != "off",
    )


def _validation_sets(inputs: Inputs, loader: Loader) -> dict[str, ValidationSet]:
    def read(name: str) -> Iterator[Example]:
        for batch in loader.validation(name):
            yield Example(batch.keys[0], batch.latents[0], batch.text[0])

    return {
        name: ValidationSet(count=len(items), read=partial(read, name))
        for name, items in inputs.plan.validation.items()
    }


def measure(
    inputs: Inputs, forward: Forward, conditioning: ConditioningEncoder, examples: Iterable[Example]
) -> ValidationLoss:
    """The validation loss of `examples`, as the settings have it measured."""
    settings = inputs.cfg.validation
    return validate(
        examples,
        forward,
        objective=inputs.objective,
        sigmas=settings.validation_sigmas,
        repeats=settings.validation_repeats,
        seed=settings.validation_seed,
        batch_size=inputs.plan.validation_batch,
        device=inputs.device,
        conditioning=conditioning,
    )


def _metadata(
    inputs: Inputs, trainable: Trainable, counter: PositionCounter, step: int, started: float
) -> dict[str, str]:
    buckets: dict[tuple[int, int], int] = {}
    for fit in inputs.plan.fits:
        buckets[fit.bucket.size] = buckets.get(fit.bucket.size, 0) + 1
    return file_metadata(
        inputs.cfg,
        inputs.plan.items,
        buckets,
        architecture=inputs.family.lora_architecture(inputs.base),
        base_model_version=inputs.family.lora_version,
        targets=len(trainable.lora.layers),
        step=step,
        steps=inputs.plan.steps,
        epoch=counter.position.epoch,
        prediction=inputs.objective.name,
        started=started,
    )
