"""Puts together what measures a run: the loss of its validation sets and of each training picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from backend.config.experts import SIDES
from backend.dataset.items import Item
from backend.families.spec import Side
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

Measure = Callable[[Iterable[Example]], ValidationLoss]
"""Gives the loss of pictures at some noise levels."""


def validation_sets(inputs: Inputs, loader: Loader) -> dict[str, ValidationSet]:
    """The sets whose loss is measured, by name: those held out, and a sample of the trained ones where that is set."""

    def examples(read: Callable[[], Iterator[Batch]]) -> Iterator[Example]:
        for batch in read():
            yield _example(batch, batch.keys[0])

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
    parts: Sequence[Measure],
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
            yield from (_example(batch) for batch in batches)

    return PictureLosses(
        run=context.run,
        events=context.events,
        requests=context.requests,
        position=counter.current,
        total_steps=inputs.plan.steps.steps,
        pictures=[PictureId(name, item.key, str(item.path)) for name, items in sets.items() for item in items],
        read=read,
        measures=parts,
        # both experts are measured by turns, each by itself
        to_use=trainable.to_use if trainable.experts is None else nullcontext,
        how={
            "sigmas": settings.validation_sigmas,
            "repeats": settings.validation_repeats,
            "seed": settings.validation_seed,
            **({"masks": inputs.cfg.masks.model_dump()} if any(item.mask for item in inputs.plan.items) else {}),
        },
    )


def _example(batch: Batch, key: str = "") -> Example:
    """The one picture of `batch`."""
    return Example(key=key, latent=batch.latents[0], text=batch.text[0], weights=next(iter(batch.weights), None))


def measures(
    inputs: Inputs, forward: Forward, conditioning: ConditioningEncoder, experts: Experts | None
) -> dict[tuple[int, ...], Measure]:
    """What measures pictures as the settings have it, by the numbers of the noise levels at which it does so.

    Of both experts, each at its own: all pictures by one, and then by the other, since a change moves a whole model.
    """
    sigmas = inputs.cfg.validation.validation_sigmas
    every = tuple(range(len(sigmas)))
    if experts is None:
        return {every: partial(_measured, inputs, forward, conditioning, sigmas)}
    own = {side: tuple(number for number in every if experts.side_of(sigmas[number]) == side) for side in SIDES}
    return {
        numbers: partial(_by_expert, experts, side, inputs, forward, conditioning, [sigmas[n] for n in numbers])
        for side, numbers in own.items()
        if numbers
    }


def measure(parts: Mapping[tuple[int, ...], Measure], examples: Iterable[Example]) -> ValidationLoss:
    """The validation loss of `examples`, which are gone through once for each of the `parts` (of `measures`)."""
    losses: dict[int, float] = {}
    for numbers, part in parts.items():
        losses |= dict(zip(numbers, part(examples).sigma_losses, strict=True))
    return ValidationLoss(tuple(loss for _, loss in sorted(losses.items())))


def _by_expert(
    experts: Experts,
    side: Side,
    inputs: Inputs,
    forward: Forward,
    conditioning: ConditioningEncoder,
    sigmas: Sequence[float],
    examples: Iterable[Example],
) -> ValidationLoss:
    experts.take(side)
    with experts.to_use():
        return _measured(inputs, forward, conditioning, sigmas, examples)


def _measured(
    inputs: Inputs,
    forward: Forward,
    conditioning: ConditioningEncoder,
    sigmas: Sequence[float],
    examples: Iterable[Example],
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
