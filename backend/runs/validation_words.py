"""Says in words what a run concludes from its validation losses: for log, terminal and page alike."""

from __future__ import annotations

from backend.runs.events.validation import AverageEvent, BestEvent, EarlyStopEvent, OverfitEvent


def best_words(event: BestEvent) -> str:
    """The new lowest loss, and where the LoRA is kept."""
    kept = f", kept in {event.file}" if event.file else ""
    return f"Lowest validation loss so far: {event.loss:.5f} at step {event.step}{kept}"


def early_stop_words(event: EarlyStopEvent) -> str:
    """At which step and why a run ends before its length, and which step was the best."""
    gain = f" of more than {event.min_gain:g}" if event.min_gain else ""
    whole = f" of {event.total}" if event.total is not None else ""
    many = "one validation" if event.validations == 1 else f"{event.validations} validations in a row"
    lowest = _at("", event.lowest_loss, event.lowest_step)
    best = f" The lowest is {lowest}{f', kept in {event.file}' if event.file else ''}." if lowest else ""
    return f"Early stop at step {event.step}{whole}: {many} without a gain{gain} in validation loss.{best}"


def overfit_words(event: OverfitEvent) -> tuple[str, str]:
    """What the losses show, and what to do about it."""
    lowest, trained = _loss(event.lowest_loss), _loss(event.lowest_training_loss)
    if event.state == "ended":
        text = f"Step {event.step}: the losses show no overfitting any more (validation {_loss(event.loss)})"
        return text, ""
    text = (
        f"The LoRA overfits, seen at step {event.step}: from step {event.lowest_step} on the loss of validation images "
        f"rose from {lowest} to {_loss(event.loss)}, and that of training images fell from {trained} to "
        f"{_loss(event.training_loss)}"
    )
    remedy = (
        f"The LoRA of step {event.lowest_step} fits new images best. For the next run: fewer steps or an early stop, a "
        "lower learning rate or rank, dropout, or more images."
    )
    return text, remedy


def average_words(event: AverageEvent) -> str:
    """Of which files the average is, and how its validation loss compares."""
    steps = ", ".join(map(str, event.steps or ()))
    lost = "" if event.error is None else f" ({event.error:.1%} of its change is lost to the rank)"
    compared = ""
    if event.loss is not None:
        others = [_at("the finished LoRA ", event.final_loss), _at("the lowest ", event.lowest_loss, event.lowest_step)]
        compared = f" Its validation loss is {_loss(event.loss)}; {', '.join(filter(None, others))}."
    return f"The average of steps {steps} is in {event.file}{lost}.{compared}"


def _at(before: str, loss: float | None, step: int | None = None) -> str:
    """A loss and its step; empty without a loss."""
    if loss is None:
        return ""
    return f"{before}{_loss(loss)}{'' if step is None else f' at step {step}'}"


def _loss(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.5f}"
