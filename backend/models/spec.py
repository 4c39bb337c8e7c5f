"""What the house needs to know about a model family, as torch-free data.

A family is one folder and one row of `backend.models.table`. Everything in this file is safe to import in the page's
process; the code of a family (torch, diffusers, transformers) comes in through `Family.load()` only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

FLOW_OPTIONS = frozenset(
    {"timestep_sampling", "sigmoid_scale", "discrete_flow_shift", "logit_mean", "logit_std", "mode_scale"}
    | {"weighting_scheme"}
)
"""Settings of families that are trained by flow matching."""

DIFFUSION_OPTIONS = frozenset(
    {"prediction_type", "min_snr_gamma", "debiased_estimation", "scale_v_pred_loss_like_noise_pred", "noise_offset"}
    | {"multires_noise_iterations", "multires_noise_discount", "ip_noise_gamma", "zero_terminal_snr"}
)
"""Settings of families that are trained over a diffusion schedule."""

TEXT_OPTIONS = frozenset({"train_text_encoder", "text_encoder_lr", "loraplus_text_encoder_lr_ratio"})
"""Settings of families whose text encoders can be trained."""

CONVOLUTION_OPTIONS = frozenset({"conv_dim", "conv_alpha"})
"""Settings of families with convolutions that can have a LoRA."""

PictureTokens = Callable[[int, int], int]
"""Width and height in px of a control picture as it is read -> tokens that the text encoder makes of it."""


@dataclass(frozen=True)
class Geometry:
    """How pixels become tokens: `downscale` pixels a latent cell, `patch` latent cells a token, a side each.

    most_side: tokens that a side may have, of a model whose positions end there; None where they go on.
    """

    downscale: int
    patch: int
    latent_channels: int
    most_side: int | None = None

    @property
    def pixels_per_token(self) -> int:
        """Side in pixels of the square that one token stands for (16 for FLUX)."""
        return self.downscale * self.patch

    def image_tokens(self, width: int, height: int) -> int:
        """Tokens of an image of `width` x `height` pixels; both must be multiples of `pixels_per_token`.

        Raises ValueError when they are not: rounding here would hide a wrong bucket.
        """
        step = self.pixels_per_token
        if width % step or height % step:
            raise ValueError(f"{width}x{height} px is not a multiple of {step} px")
        return (width // step) * (height // step)

    def latent_size(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns (h, w) of the latent of an image of `width` x `height` pixels."""
        return height // self.downscale, width // self.downscale


@dataclass(frozen=True)
class Controls:
    """How a family that edits takes its control pictures.

    most: pictures that a row may have. needed: it can't do without one, as its text encoder reads the caption together
    with it. area: side in px of the square whose area each is brought to, in its own proportions and to sides in
    multiples of `step` px; None where each is cut to the size of its result. read_area: the same for the text encoder,
    which then reads pictures of another size; None where it reads the same.
    """

    most: int = 1
    needed: bool = False
    area: int | None = None
    read_area: int | None = None
    step: int = 32


@dataclass(frozen=True)
class BlockClass:
    """A stack of equal blocks: each class is one graph a shape and gradient mode.

    `attribute` is the ModuleList's name on the denoiser, or, where it holds a backslash, a regular expression for the
    paths of several lists of such blocks; `class_name` the class of its blocks. `joint`: they see text and image as one
    sequence, of whose length alone a graph knows.
    """

    name: str
    attribute: str
    class_name: str
    joint: bool = False


@dataclass(frozen=True)
class Part:
    """One part of a base model: a folder of the diffusers layout, or what a single file holds of it.

    `class_names` are those that model_index.json or the part's own config may give; `files` lists alternatives: of each
    inner tuple at least one must be there. `weights` is the stem of its safetensors ("" for a part without weights);
    `markers` are tensor names that the weights must hold, so that a mixed-up file is seen before anything loads.
    `setting` is the [model] setting that may give this part alone ("" for none). `layouts` are the layouts of single
    files that it is read from (names in `backend.models.layouts`), and `shipped` the config that goes with them, a file
    below backend/models; a part without layouts comes from folders only. `where` says what a person takes for it: a
    published file's name, or which folder of which model. `optional`: the model works without it.
    """

    name: str
    title: str
    folder: str
    class_names: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    weights: str = ""
    markers: tuple[str, ...] = ()
    setting: str = ""
    layouts: tuple[str, ...] = ()
    shipped: str = ""
    where: str = ""
    optional: bool = False


@dataclass(frozen=True)
class FamilyFacts:
    """The torch-free facts of a family.

    `text_rule` says what trimming a caption means (DESIGN section 3): "attended" (padding is attended: not trimmed
    unless asked), "masked" (padding is masked: trimmed freely) or "sink" (zero padding serves as attention sink).
    `default_targets` are LoRA targets: a module path's suffix, or, where it holds a backslash, a regular expression
    that must match the whole path. `options` names settings that only some families have. `objective` is what it is
    trained with: "flow" or "diffusion". `lacks_modes` says of shape modes that it can't have why not.
    `controls`: it edits, starting from control pictures; None for one that takes none.
    `fixed_text_length`: text is always `text_length` tokens, or chunks of it, neither set nor trimmed.
    `one_size_batches`: all pictures of a batch must have one size, whatever the shape mode. `caption_template`: what a
    caption is put into before its tokens are counted, of which the first `template_tokens` are left out. `text_before`:
    tokens that the denoiser sees before those that `text_length` counts, of a caption's states by another encoder.
    `text_targets`: as `default_targets`, in the text encoders, of a family where these can be trained. `conv_targets`:
    as `default_targets`, the layers that `conv_dim` adds. `diffusers_layers`: module paths (regular expressions for the
    whole path) that diffusers takes from a LoRA file in kohya's layout; None: all of them, empty: none.
    """

    name: str
    title: str
    pipeline_class: str
    denoiser_class: str
    text_length: int
    text_rule: str
    block_classes: tuple[BlockClass, ...]
    parts: tuple[Part, ...]
    default_targets: tuple[str, ...]
    default_geometry: Geometry
    options: frozenset[str] = field(default_factory=frozenset)
    objective: str = "flow"
    lacks_modes: Mapping[str, str] = field(default_factory=dict)
    fixed_text_length: bool = False
    one_size_batches: bool = False
    controls: Controls | None = None
    caption_template: str = "{}"
    template_tokens: int = 0
    text_before: int = 0
    text_targets: tuple[str, ...] = ()
    conv_targets: tuple[str, ...] = ()
    diffusers_layers: tuple[str, ...] | None = None

    def part(self, name: str) -> Part:
        """The part called `name`; KeyError when the family has none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"{self.title} has no part {name!r}")


@dataclass(frozen=True)
class Family:
    """A row of the table: facts, the torch-free module behind them, and the modules with the code.

    `facts_module` offers `check_base_model(base)` and `geometry(base)`, of a `backend.models.base.Base` or a path,
    `scheduler_config(base)`, the config of its scheduler, `facts_of(base)` where models of the family
    differ in their block classes, and `picture_tokens(base)` where the text encoder reads control pictures;
    `code` all that the loop calls; `denoise` the forward alone (`predict`, `block_lists`, `install`), without the
    loaders.
    """

    facts: FamilyFacts
    facts_module: str
    code: str
    denoise: str

    def load(self) -> ModuleType:
        """The family's code; imports torch and diffusers."""
        return importlib.import_module(self.code)

    def load_denoise(self) -> ModuleType:
        """The family's forward alone; imports torch and diffusers' denoiser."""
        return importlib.import_module(self.denoise)

    def _torch_free(self) -> ModuleType:
        return importlib.import_module(self.facts_module)

    def check_base_model(self, base: Any, variant: str | None = None) -> list[Any]:
        """All problems of a base model; empty when it can be loaded. variant: of its files, where `base` is a path."""
        return self._torch_free().check_base_model(*_with(base, variant))

    def geometry(self, base: Any) -> Geometry:
        """Geometry read from the base model's own configs."""
        return self._torch_free().geometry(base)

    def scheduler_config(self, base: Any) -> dict[str, Any]:
        """The config of the base model's scheduler; ValueError when it can't be read."""
        return self._torch_free().scheduler_config(base)

    def facts_of(self, base: Any) -> FamilyFacts:
        """The facts with the block classes that this base model has; the family's own where it can't be read."""
        narrowed = getattr(self._torch_free(), "facts_of", None)
        return self.facts if narrowed is None else narrowed(base)

    def picture_tokens(self, base: Any) -> PictureTokens | None:
        """Counts the tokens of a control picture that the text encoder reads; None where it reads none."""
        counter = getattr(self._torch_free(), "picture_tokens", None)
        return None if counter is None else counter(base)

    def sizes(self, base: Any, variant: str | None = None) -> dict[str, int]:
        """Bytes on disk of each part's weights, by part name (parts without weights are left out)."""
        # Not at the top: the base module is made of this one's classes.
        from backend.models.base import Base

        given = Base.at(base, variant)
        return {part.name: given.bytes(part) for part in self.facts.parts if part.weights}


def _with(base: Any, variant: str | None) -> tuple[Any, ...]:
    return (base,) if variant is None else (base, variant)
