"""Decides a step's shapes, in one place: padding, masks, dynamic marks and the attention route.

A family's `predict` hands its rows to `ShapeRuntime.pack` and gets rectangles back, with the mask of the chosen route.
Which rectangle is the shape mode's business:

- static: image rows padded to `static_token_count`, exactly masked: one graph for every bucket.
- exact_buckets, off: native sizes; padding only where rows of one batch differ.
- dynamic: native sizes, the token axes marked dynamic.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor, nn

from backend.compile.forward_shape import ForwardShape, set_forward_shape
from backend.compile.torch_config import set_for_all_threads
from backend.config.family_defaults import shape_mode_of
from backend.shapes import attention_routes, padding
from backend.shapes.attention_routes import Route

log = logging.getLogger(__name__)

MODES = ("static", "exact_buckets", "dynamic", "off")

Install = Callable[[nn.Module, Route, int | None], None]
"""Makes a route the attention of a denoiser; last, joint tokens that a dynamic graph is bounded to, None for none."""


@dataclass(frozen=True)
class Packed:
    """A batch in rectangles: image (B, N, C), text (B, T, D), their real lengths, and the mask (None if unpadded)."""

    image: Tensor
    text: Tensor
    image_lengths: tuple[int, ...]
    text_lengths: tuple[int, ...]
    mask: Any

    @property
    def text_size(self) -> int:
        return self.text.shape[1]

    @property
    def image_size(self) -> int:
        return self.image.shape[1]


class ShapeRuntime:
    """Shapes of a run. One object serves training, validation and sampling.

    mode: one of MODES. static_token_count: image tokens that `static` pads to, the least of several that holds the row
    (clips of each length have a count of their own); a larger image keeps its size (a graph of its own, which the plan
    lists). caption_buckets: ascending text lengths, or None for no trimming. text_length:
    text tokens that rows are padded to, or None for the longest row of the batch. route: from `attention.choose`.
    padding: False says that the plan has no padded row at all, so static mode needs no mask. longest: text and image
    tokens of the plan's longest row, to which dynamic graphs are bounded (None: unbounded).
    pad_fill: value of padded positions; anything finite gives the same result (tests use garbage).
    """

    def __init__(
        self,
        mode: str = "off",
        static_token_count: int | Sequence[int] | None = None,
        caption_buckets: Sequence[int] | None = None,
        text_length: int | None = None,
        route: Route | None = None,
        padding: bool = True,
        longest: int | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"unknown shape mode {mode!r}; known: {', '.join(MODES)}")
        if mode == "static" and not static_token_count:
            raise ValueError("shape mode static needs static_token_count")
        self.mode = mode
        counts = [static_token_count] if isinstance(static_token_count, int) else static_token_count or ()
        self.static_token_counts = tuple(sorted(counts))
        self.caption_buckets = tuple(sorted(caption_buckets)) if caption_buckets else None
        self.text_length = text_length
        self.route = route or attention_routes.MaskedSdpa()
        self.padding = padding
        self.longest = longest
        self.pad_fill = 0.0
        self._installed: Any = None

    @classmethod
    def from_plan(
        cls, cfg: Any, plan: Any, device: torch.device | str, dtype: torch.dtype, route: Route | None = None
    ) -> ShapeRuntime:
        """Runtime of a run from its Config and its shape plan; `dtype` is the denoiser's compute dtype.

        route: attention's, where it is chosen already.

        Raises ValueError when the attention route asked for has no kernel here, or static has no token count.
        """
        mode, counts = shape_mode_of(cfg), plan.static_token_counts
        graphs = plan.graphs
        shapes = (*graphs.training, *graphs.validation, *graphs.sampling)
        device = torch.device(device)
        runtime = cls(
            mode,
            counts,
            plan.caption_buckets,
            plan.text_tokens,
            route or attention_routes.choose_route(cfg.compile.attention, device, dtype),
            padding=may_pad(cfg, plan),
            longest=max((shape.image_tokens + shape.text_tokens for shape in shapes), default=None),
        )
        if cfg.compile.compile:
            runtime.expect_graphs(cfg.compile.compile_dynamic, device, dtype)
        log.info("shapes: %s", runtime.describe())
        return runtime

    def describe(self) -> str:
        """The decision in one line, for the log."""
        counts = " or ".join(map(str, self.static_token_counts))
        size = f" at {counts} image tokens" if self.mode == "static" else ""
        captions = f", captions trimmed to {self.caption_buckets}" if self.caption_buckets else ""
        return f"{self.mode}{size}{captions}, attention {self.route.name} ({self.route.detail})"

    def install(self, denoiser: nn.Module, install: Install) -> None:
        """Give the denoiser's attention this runtime's route, by the family's `install`; cheap when it has it."""
        key = (id(denoiser), id(self.route))
        if self._installed == key:
            return
        if next(denoiser.parameters()).device.type == "cuda":
            attention_routes.pin_sdpa_backends()
        # On a GPU inductor asks whether fusing two reductions pays, and guards a graph of open sizes on the answer
        # (at least 4096 rows, two rows a column, 5 M numbers). Fixed sizes are decided without a guard.
        with contextlib.suppress(AttributeError):  # a later torch may do without
            set_for_all_threads(
                torch._inductor.config, "triton.mix_order_reduction_non_strict_mode", self.mode == "dynamic"
            )
        install(denoiser, self.route, self.longest if self.mode == "dynamic" else None)
        self._installed = key

    def image_size(self, lengths: Sequence[int]) -> int:
        """Image tokens of the batch's rectangle, from the rows' real tokens."""
        longest = max(lengths)
        if self.mode == "static":
            return next((count for count in self.static_token_counts if count >= longest), longest)
        return longest

    def text_tokens(self, length: int, real: int | None) -> int:
        """Tokens that stay of a caption encoded at `length`, of which `real` are not padding (None: not known)."""
        if self.caption_buckets is None or real is None:
            return length
        fitting = [bucket for bucket in self.caption_buckets if bucket >= real]
        return min(length, fitting[0] if fitting else length)

    def text_size(self, lengths: Sequence[int]) -> int:
        """Text tokens of the batch's rectangle, from the rows' (trimmed) lengths."""
        longest = max(lengths)
        if self.caption_buckets is None and self.mode == "static" and self.text_length:
            return max(longest, self.text_length)
        return longest

    def room(self, lengths: Sequence[int]) -> int:
        """Text tokens of the rectangle where text has no padding of its own and what is added is masked.

        The bucket of the longest row where captions are trimmed, else `text_length`, whatever the mode: one shape.
        """
        longest = max(lengths)
        if self.caption_buckets is None:
            return max(longest, self.text_length or 0)
        fitting = [bucket for bucket in self.caption_buckets if bucket >= longest]
        return fitting[0] if fitting else max(longest, self.text_length or 0)

    def pack(self, image: Sequence[Tensor], text: Sequence[Tensor], text_size: int | None = None) -> Packed:
        """Rectangles of image rows (n_b, C) and text rows (t_b, D), and the mask of their joint sequence.

        Text is padded on the left, image on the right. text_size: from `room`, of a family whose text is padded here
        alone. Also tells telemetry what is being computed.
        """
        image_lengths = tuple(row.shape[0] for row in image)
        text_lengths = tuple(row.shape[0] for row in text)
        # Where padding may come, the mask is always there: with and without one would be two graphs.
        may_pad = (self.mode == "static" and self.padding) or (self.caption_buckets is not None and len(image) > 1)
        if text_size is not None:
            may_pad = may_pad or bool(self.caption_buckets or self.text_length)
        image_size, text_size = self.image_size(image_lengths), text_size or self.text_size(text_lengths)
        runs = padding.joint_spans(text_lengths, image_lengths, text_size, image_size)
        masked = runs.padded or may_pad
        set_forward_shape(ForwardShape(batch=len(image), image_tokens=image_size, text_tokens=text_size, masked=masked))
        return Packed(
            image=padding.pad_rows(image, image_size, "right", self.pad_fill),
            text=padding.pad_rows(text, text_size, "left", self.pad_fill),
            image_lengths=image_lengths,
            text_lengths=text_lengths,
            mask=self.route.prepare(runs, image[0].device) if masked else None,
        )

    def image_mask(self, batch: Packed) -> Any:
        """The mask for attention among the image's own tokens; None exactly where the joint sequence has none."""
        if batch.mask is None:
            return None
        none = (0,) * len(batch.image_lengths)
        runs = padding.joint_spans(none, batch.image_lengths, 0, batch.image_size)
        return self.route.prepare(runs, batch.image.device)

    @property
    def mark(self) -> Callable[..., None] | None:
        """In dynamic mode, the function that marks a block's token axes dynamic; None in the other modes."""
        return mark_tokens if self.mode == "dynamic" else None

    def compile_dynamic(self, setting: str | bool | None) -> str | bool | None:
        """What torch receives as `dynamic`: the modes dynamic and exact_buckets rule over the setting."""
        return {"dynamic": "auto", "exact_buckets": "false"}.get(self.mode, setting)

    def expect_graphs(self, setting: str | bool | None, device: torch.device, dtype: torch.dtype) -> None:
        """Ready the route for blocks compiled with `setting` as their `dynamic`: graphs of open sizes need another."""
        if self.compile_dynamic(setting) != "false" and attention_routes.has_flash(device, dtype):
            self.route.open_sizes()


def mark_tokens(streams: Sequence[Tensor], rope: Sequence[Tensor], mask: Any) -> None:
    """Mark the token axis of `streams` and `rope` (B, S, ...) dynamic, and the axes of `mask` as long as rope's.

    Without a rope they are as long as all streams together. Must run right before the compiled call, inside of what a
    checkpoint recomputes: a recompute gets fresh tensors without marks. A mark that torch has to give up costs a graph,
    not an error.
    """
    for tensor in (*streams, *rope):
        torch._dynamo.maybe_mark_dynamic(tensor, 1)
    whole = rope[0].shape[1] if rope else sum(stream.shape[1] for stream in streams)
    for tensor in mask if isinstance(mask, tuple) else (mask,):
        if isinstance(tensor, Tensor):
            for axis, size in enumerate(tensor.shape):
                if size == whole and size > 1:
                    torch._dynamo.maybe_mark_dynamic(tensor, axis)


def may_pad(cfg: Any, plan: Any) -> bool:
    """Whether a row of the run's static shapes may be padded."""
    counts = plan.static_token_counts
    # Trimmed captions are padded to their batch's bucket; else only images are.
    return plan.caption_buckets is not None or not counts or not _never_padded(cfg, plan, counts)


def _never_padded(cfg: Any, plan: Any, counts: Sequence[int]) -> bool:
    """Whether every row of the run has exactly the image tokens of a count: training, validation and samples."""
    from backend.plan.mode_plan import prompt_tokens, sampling_is_on

    fits = [*plan.fits, *(fit for each in plan.validation_fits.values() for fit in each)]
    tokens = {fit.bucket.tokens for fit in fits}
    if sampling_is_on(cfg):
        tokens |= {prompt_tokens(prompt, plan.references) for prompt in cfg.sampling.prompts}
    return bool(tokens) and tokens <= set(counts)
