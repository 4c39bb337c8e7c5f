"""Says what is trained by turns, weighed otherwise, or measured picture by picture, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from backend.base.paths import resolve
from backend.config.experts import ENDINGS, SIDES, turns_of
from backend.dataset.class_images import DRAW_CLASS_IMAGES
from backend.dataset.items import Finding, count_of
from backend.plan.plan import Plan

if TYPE_CHECKING:
    from backend.config.schema import Config

# Work for the loss of each picture that is worth a warning, as a share of the training's.
_MUCH_MEASURED = 0.25
# Regularization images to others, and the reverse, from which on one of the two is hardly seen.
_OTHER_SHARE = 3


def experts(cfg: Config, steps: int) -> Iterable[Finding]:
    """The turns of two experts, and an expert that has none."""
    turns = turns_of(cfg)
    if turns is None or not steps:
        return
    high, low = (turns.steps(side, steps) for side in SIDES)
    each = f"{count_of(high, 'step')} for high noise and {low} for low noise, by turns of {turns.every}"
    setting = "timesteps.switch_boundary_every"
    if not low:
        text = f"The expert for low noise is not trained: the run ends within the first turn ({each})"
        yield Finding("no_turn", "warning", text, "Lower switch_boundary_every, or train longer.", (), setting)
        return
    text = f"Both experts are trained: {each}. Each save writes two LoRA files, {ENDINGS['high']} and {ENDINGS['low']}"
    yield Finding("experts", "note", text, "", (), setting)


def regularization(cfg: Config, plan: Plan) -> Iterable[Finding]:
    """How many regularization images an epoch has beside the others; sd-scripts takes as many of them."""
    count = {is_reg: sum(item.repeats for item in plan.items if item.is_reg == is_reg) for is_reg in (True, False)}
    if not count[True]:
        return
    text = (
        f"An epoch has {count_of(count[True], 'regularization image')} and {count[False]} others, repeats included; "
        f"their loss counts {cfg.loss.prior_loss_weight:g} times"
    )
    for folder in cfg.dataset.folders:
        if folder.class_images is None:
            continue
        root = resolve(folder.path)
        present = sum(item.path.is_relative_to(root) for item in plan.items if item.is_reg)
        if present < folder.class_images:
            lack = f"{folder.path} has {present} of {count_of(folder.class_images, 'class image')}"
            yield Finding(
                "class_images", "warning", lack, f"Draw the others: {DRAW_CLASS_IMAGES}.", (), "dataset.folders"
            )
    many = not count[False] / _OTHER_SHARE <= count[True] <= count[False] * _OTHER_SHARE
    remedy = "About as many of each is usual: change num_repeats of the folders." if many else ""
    yield Finding("regularization", "warning" if many else "note", text, remedy, (), "dataset.folders")


def picture_losses(cfg: Config, plan: Plan) -> Iterable[Finding]:
    """What measuring each picture costs, by arithmetic: passes, and their share of the training's work."""
    batches = plan.steps.batches
    if not cfg.validation.picture_losses or not batches:
        return
    pictures = sum(not item.is_reg for item in plan.items) + sum(map(len, plan.validation.values()))
    draws = len(cfg.validation.validation_sigmas) * cfg.validation.validation_repeats
    passes = (3 if plan.steps.steps > 1 else 2) * pictures * -(-draws // plan.validation_batch)
    # a backward pass computes about twice what a forward pass does; with checkpointing blocks run forward once more
    factor = 4 if cfg.training.gradient_checkpointing else 3
    share = passes * plan.validation_batch / (batches * plan.batch_size * factor)
    text = (
        f"The loss of each image takes {passes:,} passes without gradient in all. By arithmetic they add {share:.1%} "
        f"to the work of the {count_of(batches, 'batch')} that are trained, whose forward and backward pass together "
        f"count as {factor}"
    )
    remedy = "Use fewer validation_sigmas or validation_repeats, or switch picture_losses off."
    much = share > _MUCH_MEASURED
    yield Finding(
        "picture_losses", "warning" if much else "note", text, remedy if much else "", (), "validation.picture_losses"
    )
