"""Puts together what measures a run: the loss of its validation sets and of each training picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

from backend.config.experts import SIDES
from backend.dataset.items import Item
from backend.latents.loader import Batch, Loader
from backend.models.common.conditioning import ConditioningEncoder
from backend.plan.training_sample import TRAINING_SAMPLE, identity_of
from backend.runs.picture_table import TRAINED, PictureId
from backend.training.between_steps import ValidationSet
from backend.training.experts import Experts
from backend.training.inputs import Inputs
from backend.training.picture_losses import PictureLosses
from backend.training.position import PositionCounter
from backend.training.run_context import RunContext
from backend.training.trainable import Trainable
from backend.training.trainer import Forward
from backend.training.validation import Example, ValidationLoss, validate


def validation_sets(inputs: Inputs, loader: Loader) -> dict[str, ValidationSet]:
    """The sets whose loss is measured, by name: those held out, and a sample of the trained ones where that is set."""

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


def picture_losses(
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
    # the model knows what regularization images show: beside them every other picture would look memorised
    sets = {TRAINED: [item for item in inputs.plan.items if not item.is_reg], **inputs.plan.validation}

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
        # both experts are measured by turns, each by itself
        to_use=trainable.to_use if trainable.experts is None else nullcontext,
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
    examples: Iterable[Example],
    experts: Experts | None = None,
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
