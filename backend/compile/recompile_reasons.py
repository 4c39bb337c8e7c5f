"""Explains why a graph was made, in words a person understands, and names the setting that avoids it.

The first source is what changed between the graphs of a block class (token counts, rows, gradients); where nothing of
that changed, torch's own guard text is read, and kept verbatim where it can't be put better.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backend.compile.forward_shape import ForwardShape

_STATIC = "shape_mode = static pads every picture to one token count"
_CAPTIONS = "fewer caption_buckets, or none: captions then all have text_length tokens"
_BATCH = "a batch_size that divides the images of every bucket; samples are drawn one at a time"
_SAMPLE_TEXT = "sample prompts with the text_length of training"


@dataclass(frozen=True)
class InForce:
    """What a run's settings are already, so that no advice says to set them so.

    static: shape_mode is static. trims: captions are trimmed to buckets. one_row: batch_size is 1.
    """

    static: bool = False
    trims: bool = True
    one_row: bool = False

    def padding(self, tokens: int) -> str:
        """What would have saved a graph for images of `tokens` tokens."""
        return f"static_token_count = {tokens} or more" if self.static else _STATIC


_NOTHING_KNOWN = InForce()


@dataclass(frozen=True)
class Signature:
    """What a graph was made for: sizes of the forward, whether gradients are computed, which backend, which layers."""

    shape: ForwardShape | None
    gradients: bool
    autocast: str | None = None
    training: bool = True
    backend: str = ""
    layout: int = 0
    """Of the block, as `backend.compile.forward_shape.layout_of`."""

    def same_use(self, other: Signature) -> bool:
        """Whether both are of one backend, for blocks with the same layers, and with gradients or without alike."""
        return (self.gradients, self.backend, self.layout) == (other.gradients, other.backend, other.layout)


@dataclass(frozen=True)
class Cause:
    """Reason of a graph in words, and the setting that would have saved it (None when none would)."""

    reason: str
    setting: str | None = None


def _changes(before: Signature, after: Signature, in_force: InForce) -> list[Cause]:
    """Every difference of two signatures, most telling first, with advice that is not followed yet."""
    causes = []
    if before.shape is not None and after.shape is not None:
        old, new = before.shape, after.shape
        if old.text_tokens != new.text_tokens:
            advice = _CAPTIONS if in_force.trims else _SAMPLE_TEXT
            causes.append(Cause(f"caption length went from {old.text_tokens} to {new.text_tokens} tokens", advice))
        if old.image_tokens != new.image_tokens:
            advice = in_force.padding(max(old.image_tokens, new.image_tokens))
            causes.append(Cause(f"image tokens went from {old.image_tokens} to {new.image_tokens}", advice))
        if old.batch != new.batch:
            advice = None if in_force.one_row else _BATCH
            causes.append(Cause(f"batch went from {_rows(old.batch)} to {_rows(new.batch)}", advice))
        if old.masked != new.masked:
            came = "now holds padded rows" if new.masked else "no longer holds padded rows"
            causes.append(Cause(f"the batch {came}", None if in_force.static else _STATIC))
    if before.gradients != after.gradients:
        what = "on, for training" if after.gradients else "off, for validation or sampling"
        causes.append(Cause(f"gradients were turned {what}"))
    if before.training != after.training:
        modes = ("train to eval", "eval to train")[after.training]
        causes.append(Cause(f"the model went from {modes} mode", "leave the model in train mode"))
    if before.backend != after.backend:
        causes.append(Cause(f"the block has a backend of its own ({after.backend}, not {before.backend})"))
    if before.layout != after.layout:
        causes.append(Cause("other layers, or layers of other ranks, are trained in the block"))
    if before.autocast != after.autocast:
        causes.append(Cause(f"autocast went from {before.autocast or 'off'} to {after.autocast or 'off'}"))
    return causes


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def explain(
    known: Sequence[Signature], new: Signature, guard: str | None, in_force: InForce = _NOTHING_KNOWN
) -> Cause | None:
    """Cause of a graph with signature `new`, given those of the class's graphs so far; None for the first graph.

    guard: torch's own reason ("0/0: tensor 'x' size mismatch at index 1. expected 3, actual 4"), None if it gave none.
    in_force: what the run's settings are already.
    """
    if not known:
        return None
    nearest = min((_changes(old, new, in_force) for old in reversed(known)), key=len)
    if nearest:
        settings = list(dict.fromkeys(cause.setting for cause in nearest if cause.setting))
        return Cause(" and ".join(cause.reason for cause in nearest), "; ".join(settings) or None)
    cause = from_guard(guard)
    return Cause(cause.reason) if in_force.static and cause.setting == _STATIC else cause


_GUARDS: tuple[tuple[str, str, str | None], ...] = (
    (
        r"tensor '(?P<what>.+?)' size mismatch at index (?P<axis>\d+)\. expected (?P<old>\d+), actual (?P<new>\d+)",
        "size of {what} (axis {axis}) went from {old} to {new}",
        _STATIC,
    ),
    (
        r"tensor '(?P<what>.+?)' stride mismatch at index (?P<axis>\d+)\. expected (?P<old>\d+), actual (?P<new>\d+)",
        "memory layout of {what} changed (stride of axis {axis} went from {old} to {new})",
        None,
    ),
    (
        r"tensor '(?P<what>.+?)' dtype mismatch\. expected (?P<old>\w+), actual (?P<new>\w+)",
        "number format of {what} went from {old} to {new}",
        "one mixed_precision for training, validation and samples",
    ),
    (
        r"tensor '(?P<what>.+?)' requires_grad mismatch\. expected requires_grad=(?P<old>\w+)",
        "whether {what} takes a gradient changed (it was {old})",
        None,
    ),
    (
        r"tensor '(?P<what>.+?)' dispatch key set mismatch",
        "device or kind of {what} changed",
        "blocks_to_swap: weights must be on the GPU before their block runs",
    ),
    (r"GLOBAL_STATE changed: .*grad_mode", "gradients were turned on or off", None),
    (r"GLOBAL_STATE changed: .*autocast", "autocast changed", "one mixed_precision for the whole run"),
    (r"GLOBAL_STATE changed: (?P<what>.+?)\s*$", "a global torch setting changed ({what})", None),
    (r"self\._modules.*\.training", "the model went between train and eval mode", None),
    (
        r"\.scaling\b.*==\s*(?P<old>[\d.]+)",
        "the LoRA's strength changed (it was {old})",
        "draw samples at lora_scale = 1, or set the scale before compiling",
    ),
    (r"lora_\w+.*size mismatch", "the LoRA's rank changed", None),
)


def from_guard(guard: str | None) -> Cause:
    """torch's guard text in words; verbatim, without its graph number, where no pattern knows it."""
    if not guard:
        return Cause("torch gave no reason")
    text = re.sub(r"^\d+/\d+: ", "", guard.strip().splitlines()[0])
    for pattern, words, setting in _GUARDS:
        match = re.search(pattern, text)
        if match:
            return Cause(words.format(**match.groupdict()), setting)
    return Cause(text)
