"""What a step's shapes are, decided in one place: padding, masks, dynamic marks and the attention route.

A family's `predict` hands its rows to `ShapeRuntime.pack` and gets rectangles back, with the mask of the chosen route.
Which rectangle is the shape mode's business (DESIGN section 3):

- static: image rows padded to `static_token_count`, exactly masked: one graph for every bucket.
- exact_buckets, off: native sizes; padding only where rows of one batch differ.
- dynamic: native sizes, the token axes marked dynamic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backend.compile.scene import Scene, set_scene
from backend.models.table import family_of_denoiser
from backend.shapes import attention, segments
from backend.shapes.attention import Route

log = logging.getLogger(__name__)

MODES = ("static", "exact_buckets", "dynamic", "off")


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

    mode: one of MODES. static_token_count: image tokens that `static` pads to; a larger image keeps its size (a graph
    of its own, which the plan lists). caption_buckets: ascending text lengths, or None for no trimming. text_length:
    text tokens that rows are padded to, or None for the longest row of the batch. route: from `attention.choose`.
    padding: False says that the plan has no padded row at all, so static mode needs no mask.
    pad_fill: value of padded positions; anything finite gives the same result (tests use garbage).
    """

    def __init__(
        self,
        mode: str = "off",
        static_token_count: int | None = None,
        caption_buckets: Sequence[int] | None = None,
        text_length: int | None = None,
        route: Route | None = None,
        padding: bool = True,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"unknown shape mode {mode!r}; known: {', '.join(MODES)}")
        if mode == "static" and not static_token_count:
            raise ValueError("shape mode static needs static_token_count")
        self.mode = mode
        self.static_token_count = static_token_count
        self.caption_buckets = tuple(sorted(caption_buckets)) if caption_buckets else None
        self.text_length = text_length
        self.route = route or attention.MaskedSdpa()
        self.padding = padding
        self.pad_fill = 0.0
        self._installed: Any = None

    @classmethod
    def from_plan(cls, cfg: Any, plan: Any, device: torch.device, dtype: torch.dtype) -> ShapeRuntime:
        """Runtime of a run: `cfg` is the Config, `plan` the shape plan (its `static_token_count` fills an unset one).

        Raises ValueError when the attention route asked for has no kernel here.
        """
        settings = cfg.compile
        count = settings.static_token_count or getattr(plan, "static_token_count", None)
        route = attention.choose(settings.attention, torch.device(device), dtype)
        mode = settings.shape_mode
        if mode == "static" and not count:
            raise ValueError("shape mode static needs static_token_count, and the plan gives none")
        runtime = cls(mode, count, settings.caption_buckets, cfg.model.text_length, route)
        log.info("shapes: %s", runtime.describe())
        return runtime

    def describe(self) -> str:
        """The decision in one line, for the log."""
        size = f" at {self.static_token_count} image tokens" if self.mode == "static" else ""
        captions = f", captions trimmed to {self.caption_buckets}" if self.caption_buckets else ""
        return f"{self.mode}{size}{captions}, attention {self.route.name} ({self.route.detail})"

    def install(self, denoiser: nn.Module) -> None:
        """Give the denoiser's attention modules this runtime's route; cheap when it has it already."""
        key = (id(denoiser), id(self.route))
        if self._installed == key:
            return
        if next(denoiser.parameters()).device.type == "cuda":
            attention.pin_sdpa_backends()
        family_of_denoiser(type(denoiser).__name__).load_denoise().install(denoiser, self.route)
        self._installed = key

    def image_size(self, lengths: Sequence[int]) -> int:
        """Image tokens of the batch's rectangle, from the rows' real tokens."""
        longest = max(lengths)
        if self.mode == "static" and self.static_token_count is not None:
            return max(longest, self.static_token_count)
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

    def pack(self, image: Sequence[Tensor], text: Sequence[Tensor]) -> Packed:
        """Rectangles of image rows (n_b, C) and text rows (t_b, D), and the mask of their joint sequence.

        Text is padded on the left, image on the right. Also tells telemetry what is being computed.
        """
        image_lengths = tuple(row.shape[0] for row in image)
        text_lengths = tuple(row.shape[0] for row in text)
        image_size, text_size = self.image_size(image_lengths), self.text_size(text_lengths)
        runs = segments.joint_runs(text_lengths, image_lengths, text_size, image_size)
        # In static mode the mask is always there: with and without one would be two graphs.
        masked = runs.padded or (self.mode == "static" and self.padding)
        set_scene(Scene(batch=len(image), image_tokens=image_size, text_tokens=text_size, masked=masked))
        return Packed(
            image=segments.pad_rows(image, image_size, "right", self.pad_fill),
            text=segments.pad_rows(text, text_size, "left", self.pad_fill),
            image_lengths=image_lengths,
            text_lengths=text_lengths,
            mask=self.route.prepare(runs, image[0].device) if masked else None,
        )

    def mark_mask(self, mask: Any, length: int) -> None:
        """In dynamic mode, mark the axes of a prepared mask that are as long as the joint sequence."""
        if self.mode != "dynamic":
            return
        for tensor in mask if isinstance(mask, tuple) else (mask,):
            if isinstance(tensor, Tensor):
                for axis in range(tensor.ndim):
                    if tensor.shape[axis] == length:
                        self.mark(tensor, axis=axis)

    def mark(self, *tensors: Any, axis: int = 1) -> None:
        """In dynamic mode, mark the token axis of each tensor dynamic (those with such an axis above 1).

        Must run right before the compiled call, inside of what a checkpoint recomputes: a recompute gets fresh tensors
        without marks. A mark that torch has to give up (a size that equals a weight's) costs a graph, not an error.
        """
        if self.mode != "dynamic":
            return
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.ndim > axis and tensor.shape[axis] > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, axis)
