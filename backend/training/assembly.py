"""Assembles a run from its inputs: step log, loader, samples, validation, saver, trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from accelerate import Accelerator
from torch import nn

from backend.base.paths import resolve
from backend.config.experts import SIDES
from backend.config.schema import SamplePrompt
from backend.dataset.controls import sample_items
from backend.dataset.items import Item
from backend.families.files.hashes import ModelHashes
from backend.families.spec import Side, VideoRule
from backend.latents.loader import Batch, Loader
from backend.memory.exclusive_device import offloaded
from backend.memory.sample_decoder import SampleDecoder
from backend.models.common.conditioning import ConditioningEncoder
from backend.plan.mode_plan import fitting_frames, fitting_size
from backend.plan.training_sample import TRAINING_SAMPLE, identity_of
from backend.runs.events import EventWriter, read_events
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from backend.runs.picture_table import TRAINED, PictureId
from backend.training.averaging import Averaging
from backend.training.best import BestFile
from backend.training.between_steps import BetweenSteps, ValidationSet
from backend.training.checkpoint import Fingerprint
from backend.training.encoding import encode_again, free_memory
from backend.training.experts import ExpertDrawing, Experts
from backend.training.follow_up import FollowUp
from backend.training.gathering import report_problems
from backend.training.inputs import Inputs
from backend.training.lora_metadata import file_metadata
from backend.training.monitor import Monitor
from backend.training.picture_losses import PictureLosses
from backend.training.position import PositionCounter
from backend.training.requests import Requests
from backend.training.sampling import PromptText, Sampler, uses_negative
from backend.training.save_check import save_problems
from backend.training.saver import Saver
from backend.training.step_log import StepLog, row_writer
from backend.training.trainable import Trainable
from backend.training.trainer import Forward, Trainer
from backend.training.validation import Example, ValidationLoss, validate
from backend.training.validation_history import ValidationHistory


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
    if not inputs.full:
        report_problems(save_problems(context.run, cfg, trainable.weights, trainable.files), context.events)
    between_steps = _between_steps(
        context, inputs, trainable, forward, counter, conditioning, loader, step_log, saver, monitor
    )
    free_memory()
    return Trainer(
        training=cfg.training,
        max_grad_norm=cfg.optimizer.max_grad_norm,
        accelerator=accelerator,
        forward=forward,
        weights=trainable.weights,
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
        expected=inputs.expected,
        norms=trainable.norms,
        ema=trainable.ema,
        experts=trainable.experts,
        keeps_good=not inputs.full,
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
        weights=trainable.weights,
        files=trainable.files,
        position=counter.current,
        parts=trainable.parts(accelerator),
        fingerprint=fingerprint,
        metadata=lambda step, side: (
            _metadata(inputs, trainable, counter, step, side, context.started) | hashes.metadata()
        ),
        flush=metrics.flush,
        to_use=trainable.to_use,
        experts=trainable.experts,
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
    cfg, sampler, validation_sets = inputs.cfg, None, _validation_sets(inputs, loader)
    if cfg.sampling.prompts:
        sampler = _sampler(context, inputs, forward, conditioning, trainable, loader, counter.position.step)
    follow_up = _follow_up(context, inputs, saver, validation_sets, counter.position.step)
    averaging = None
    if cfg.saving.average_checkpoints is not None:
        averaging = Averaging(settings=cfg.saving, saver=saver, history=follow_up and follow_up.history)
        saver.protected = averaging.protected
    measured = partial(measure, inputs, forward, conditioning, trainable.experts)
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
        validation_sets=validation_sets,
        measure=measured,
        picture_losses=_picture_losses(context, inputs, trainable, counter, loader, measured),
        draw_samples=sampler.draw if sampler else None,
        resume_training=monitor.resume_training,
        note_requested_samples=monitor.note_requested_samples,
        # both experts are measured and drawn with by turns, each by itself
        to_use=trainable.to_use if trainable.experts is None else nullcontext,
        follow_up=follow_up,
        averaging=averaging,
        leave=leaving(inputs, forward.denoiser),
    )


def _follow_up(
    context: RunContext, inputs: Inputs, saver: Saver, sets: dict[str, ValidationSet], step: int
) -> FollowUp | None:
    """What is concluded from validations, with those that a resumed run made before; None without validation sets."""
    if not sets:
        return None
    cfg = inputs.cfg
    identities = {(name, each.trained): each.identity for name, each in sets.items()}
    written = read_events(context.run.events_path)[0] if step else []
    held_out = " ".join(each.identity for _, each in sorted(sets.items()) if not each.trained)
    return FollowUp(
        settings=cfg.validation,
        total_steps=inputs.plan.steps.steps,
        history=ValidationHistory.from_events(written, identities, step),
        events=context.events,
        file=BestFile(saver=saver, identity=held_out) if cfg.saving.keep_best else None,
    )


def leaving(inputs: Inputs, denoiser: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Frees what the denoiser's frozen weights hold of a GPU; on a CPU there is no other memory for them."""
    return partial(offloaded, denoiser, inputs.device) if inputs.device.type == "cuda" else nullcontext


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
    trainable: Trainable,
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

    prompts, experts = inputs.cfg.sampling.prompts, trainable.experts
    drawing = None if experts is None else ExpertDrawing(experts=experts, forward=forward)
    return Sampler(
        run=context.run,
        events=context.events,
        requests=context.requests,
        prompts=prompts,
        texts=[text(number, prompt) for number, prompt in enumerate(prompts)],
        predict=forward if drawing is None else drawing.predict,
        sampler=inputs.objective.sampler,
        weights=trainable.weights if drawing is None else drawing,
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
    def examples(read: Callable[[], Iterator[Batch]]) -> Iterator[Example]:
        for batch in read():
            yield Example(batch.keys[0], batch.latents[0], batch.text[0])

    def as_set(read: Callable[[], Iterator[Batch]], items: Sequence[Item], trained: bool) -> ValidationSet:
        identity = identity_of(inputs.cfg, items)
        return ValidationSet(count=len(items), read=partial(examples, read), trained=trained, identity=identity)

    plan = inputs.plan
    sets = {name: as_set(partial(loader.validation, name), items, False) for name, items in plan.validation.items()}
    sample = [plan.items[number] for number in plan.training_sample]
    name = TRAINING_SAMPLE if TRAINING_SAMPLE not in sets else f"{TRAINING_SAMPLE} (trained)"
    return sets | ({name: as_set(loader.training_sample, sample, True)} if sample else {})


def _picture_losses(
    context: RunContext,
    inputs: Inputs,
    trainable: Trainable,
    counter: PositionCounter,
    loader: Loader,
    measure: Callable[[Iterable[Example]], ValidationLoss],
) -> PictureLosses | None:
    """What measures each training picture, and the validation pictures to compare with; None where that is off."""
    settings = inputs.cfg.validation
    if not settings.picture_losses:
        return None
    sets = {TRAINED: inputs.plan.items, **inputs.plan.validation}

    def read() -> Iterator[Example]:
        # without a key of its own: pictures of one size get the same noise, so that their losses can be compared
        for name in sets:
            batches = loader.each_trained() if name == TRAINED else loader.validation(name)
            yield from (Example("", batch.latents[0], batch.text[0]) for batch in batches)

    return PictureLosses(
        run=context.run,
        events=context.events,
        requests=context.requests,
        position=counter.current,
        total_steps=inputs.plan.steps.steps,
        pictures=[PictureId(name, item.key, str(item.path)) for name, items in sets.items() for item in items],
        read=read,
        measure=measure,
        to_use=trainable.to_use,
        how={
            "sigmas": settings.validation_sigmas,
            "repeats": settings.validation_repeats,
            "seed": settings.validation_seed,
        },
    )


def measure(
    inputs: Inputs,
    forward: Forward,
    conditioning: ConditioningEncoder,
    experts: Experts | None,
    examples: Iterable[Example],
) -> ValidationLoss:
    """The validation loss of `examples`, as the settings have it measured; of both experts, each at its own levels."""
    sigmas = inputs.cfg.validation.validation_sigmas
    if experts is None:
        return _measured(inputs, forward, conditioning, examples, sigmas)
    examples, losses = list(examples), {}
    for side in SIDES:
        own = [sigma for sigma in sigmas if experts.side_of(sigma) == side]
        if own:
            experts.take(side)
            with experts.to_use():
                measured = _measured(inputs, forward, conditioning, examples, own)
            losses |= dict(zip(own, measured.sigma_losses, strict=True))
    return ValidationLoss(tuple(losses[sigma] for sigma in sigmas))


def _measured(
    inputs: Inputs,
    forward: Forward,
    conditioning: ConditioningEncoder,
    examples: Iterable[Example],
    sigmas: Sequence[float],
) -> ValidationLoss:
    settings = inputs.cfg.validation
    return validate(
        examples,
        forward,
        objective=inputs.objective,
        sigmas=sigmas,
        repeats=settings.validation_repeats,
        seed=settings.validation_seed,
        batch_size=inputs.plan.validation_batch,
        device=inputs.device,
        conditioning=conditioning,
    )


def _architecture(inputs: Inputs) -> str:
    """``modelspec.architecture``: a LoRA's has an ending of its own."""
    architecture = inputs.family.lora_architecture(inputs.base)
    return architecture.partition("/")[0] if inputs.full else architecture


def _metadata(
    inputs: Inputs, trainable: Trainable, counter: PositionCounter, step: int, side: Side | None, started: float
) -> dict[str, str]:
    buckets: dict[tuple[int, int], int] = {}
    for fit in inputs.plan.fits:
        buckets[fit.bucket.size] = buckets.get(fit.bucket.size, 0) + 1
    return file_metadata(
        inputs.cfg,
        inputs.plan.items,
        buckets,
        architecture=_architecture(inputs),
        base_model_version=inputs.family.lora_version,
        targets=len(trainable.weights.paths),
        step=step,
        steps=inputs.plan.steps,
        epoch=counter.position.epoch,
        prediction=inputs.objective.name,
        started=started,
        side=side,
    )
