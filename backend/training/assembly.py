"""Assembles a run from its inputs: step log, loader, samples, validation, saver, trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from accelerate import Accelerator
from torch import nn

from backend.base.paths import resolve
from backend.config.schema import SamplePrompt
from backend.dataset.controls import sample_items
from backend.families.files.hashes import ModelHashes
from backend.families.spec import Side
from backend.latents.loader import Loader
from backend.memory.exclusive_device import offloaded
from backend.memory.sample_decoder import SampleDecoder
from backend.models.common.conditioning import ConditioningEncoder
from backend.plan.mode_plan import fitting_frames, fitting_size
from backend.runs.events import EventWriter, read_events
from backend.runs.metrics import MetricsWriter
from backend.training.averaging import Averaging
from backend.training.best import BestFile
from backend.training.between_steps import BetweenSteps, ValidationSet
from backend.training.checkpoint import Fingerprint
from backend.training.encoding import encode_again, free_memory
from backend.training.experts import ExpertDrawing
from backend.training.follow_up import FollowUp
from backend.training.gathering import report_problems
from backend.training.inputs import Inputs
from backend.training.lora_metadata import file_metadata
from backend.training.measuring import measure, measures, picture_losses, validation_sets
from backend.training.monitor import Monitor
from backend.training.position import PositionCounter
from backend.training.ranks.following import Following
from backend.training.run_context import RunContext
from backend.training.sampling import PromptText, Sampler, uses_negative, video_rule
from backend.training.save_check import save_problems
from backend.training.saver import Saver
from backend.training.step_log import Row, StepLog
from backend.training.trackers import row_writer
from backend.training.trainable import Trainable
from backend.training.trainer import Forward, Trainer
from backend.training.validation_history import ValidationHistory

_GPU_BACK_S = 60.0
"""How long a run that waited for a preview tries to have its weights on the GPU again."""


def assemble(
    *,
    context: RunContext,
    inputs: Inputs,
    trainable: Trainable,
    forward: Forward,
    counter: PositionCounter,
    fingerprint: Fingerprint,
    metrics: MetricsWriter | None,
    monitor: Monitor,
) -> Trainer:
    """The trainer with all its parts. Refused where the run could not be saved.

    metrics: None in a process that trains beside the first one, which keeps numbers, measures, draws and saves alone.
    """
    cfg, accelerator, encoders = inputs.cfg, forward.accelerator, trainable.encoders
    step_log = StepLog(
        write=_no_row if metrics is None else row_writer(context.run, metrics, cfg, context.stack),
        measure=monitor.measure,
        count_loss=counter.count_loss,
        loss_is_scaled=accelerator.scaler is not None,
    )
    loader = context.stack.enter_context(make_loader(inputs, context.events, counter.processes))
    conditioning = ConditioningEncoder(device=inputs.device, encode=None if encoders is None else encoders.encode)
    saver: Saver | Following = Following()
    between_steps: BetweenSteps | Following = Following()
    if metrics is not None:
        saver = _saver(context, inputs, trainable, counter, fingerprint, accelerator, metrics)
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
        prior_loss_weight=cfg.loss.prior_loss_weight,
        expected=inputs.expected,
        norms=trainable.norms,
        ema=trainable.ema,
        experts=trainable.experts,
        keeps_good=not inputs.full and metrics is not None,
        ranks=context.ranks,
    )


def _no_row(step: int, row: Row) -> None:
    """Numbers of a process that only trains go nowhere."""


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
    if not inputs.full:
        problems = save_problems(context.run, inputs.cfg, trainable.weights, trainable.files)
        report_problems(problems, context.events)
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
    cfg, sampler, sets = inputs.cfg, None, validation_sets(inputs, loader)
    if cfg.sampling.prompts:
        sampler = _sampler(context, inputs, forward, conditioning, trainable, loader, counter.position.step)
    follow_up = _follow_up(context, inputs, saver, sets, counter.position.step)
    averaging = None
    if cfg.saving.average_checkpoints is not None:
        averaging = Averaging(settings=cfg.saving, saver=saver, history=follow_up and follow_up.history)
        saver.protected = averaging.protected
    parts = measures(inputs, forward, conditioning, trainable.experts)
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
        validation_sets=sets,
        measure=partial(measure, parts),
        passes=len(parts),
        picture_losses=picture_losses(context, inputs, trainable, counter, loader, [*parts.values()]),
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
    # a preview that was killed may hold its memory for a moment more
    return partial(offloaded, denoiser, inputs.device, _GPU_BACK_S) if inputs.device.type == "cuda" else nullcontext


def make_loader(inputs: Inputs, events: EventWriter, processes: int = 1) -> Loader:
    """The loader of the run's batches, of which each of the `processes` takes its own.

    Cache files that are lost are encoded again, with an event.
    """
    return Loader(
        plan=inputs.plan,
        latents=inputs.latents,
        text=None if inputs.trains_text else inputs.texts,
        workers=inputs.cfg.dataset.loader_workers,
        conditions=inputs.code.conditions,
        renew=partial(encode_again, inputs, events),
        masks=inputs.masks,
        stride=processes,
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
        video=video_rule(inputs.cfg, inputs.family),
        sections=inputs.code.sections,
        drawn_until=resumed_at,
    )


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
