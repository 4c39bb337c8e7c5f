"""Describes a model family as torch-free data: what it must give, and what it may give with its default.

A family is a folder with a `facts.py`, whose facts are an object of the class below, and a row of
`backend.families.table`. Its code, which needs torch, is a class of its own (`backend.models.family`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from backend.base.problems import Problem
from backend.families.activations import FamilyMemory
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.check import Families, check_files
from backend.families.files.fit import Pair, config_of, differing, vae_cells, whole
from backend.families.files.layouts.rules import Layout
from backend.families.files.parts import Part

BaseModel = BaseModelFiles | Path
"""A base model's files, or the folder or file that holds all of them."""

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

VIDEO_OPTIONS = frozenset(
    {"target_frames", "frame_extraction", "frame_stride", "frame_sample", "max_frames", "target_fps", "source_fps"}
)
"""Settings of every family that is trained on clips (`FamilyFacts.video`), which need not name them."""

EXPERT_OPTIONS = frozenset({"train_experts", "timestep_boundary", "switch_boundary_every"})
"""Settings of every family of two experts (`FamilyFacts.experts`), which need not name them."""

Side = Literal["high", "low"]
"""An expert: for high noise or for low noise."""

PictureTokens = Callable[[int, int], int]
"""Width and height in px of a control picture as it is read -> tokens that the text encoder makes of it."""


@dataclass(frozen=True)
class Geometry:
    """How pixels become tokens: `downscale` pixels a latent cell, `patch` latent cells a token, a side each.

    most_side: tokens that a side may have, of a model whose positions end there; None where there is no end.
    frame_step: of a model of clips, the frames that one latent frame stands for; the first one stands for itself alone,
    so that clips have `frame_step` * n + 1 frames. None for a model of pictures.
    """

    downscale: int
    patch: int
    latent_channels: int
    most_side: int | None = None
    frame_step: int | None = None

    @property
    def pixels_per_token(self) -> int:
        """Side in pixels of the square that one token stands for (16 for FLUX)."""
        return self.downscale * self.patch

    def image_tokens(self, width: int, height: int, frames: int = 1) -> int:
        """Tokens of an image, or of a clip of `frames`, of `width` x `height` px, multiples of `pixels_per_token`.

        Raises ValueError when they are not, or `frames` is not `frame_step` * n + 1: rounding here would hide a wrong
        bucket.
        """
        step = self.pixels_per_token
        if width % step or height % step:
            raise ValueError(f"{width}x{height} px is not a multiple of {step} px")
        return (width // step) * (height // step) * self.latent_frames(frames)

    @property
    def clip_step(self) -> int | None:
        """Clips have so many frames times n, and one more."""
        return self.frame_step

    def latent_frames(self, frames: int) -> int:
        """Latent frames of a clip of `frames`; ValueError where no clip of the model has so many."""
        if frames == 1:
            return 1
        if self.frame_step is None or frames < 1 or (frames - 1) % self.frame_step:
            rule = "1" if self.frame_step is None else f"{self.frame_step} n + 1"
            raise ValueError(f"{frames} frames are not {rule}")
        return (frames - 1) // self.frame_step + 1

    def whole_frames(self, frames: int) -> int:
        """The longest clip length of the model that is not above `frames`, which is at least 1."""
        return 1 if self.frame_step is None else max(1, (frames - 1) // self.frame_step * self.frame_step + 1)

    def latent_shape(self, width: int, height: int, frames: int = 1) -> tuple[int, ...]:
        """Shape of one latent: (C, h, w) of a model of pictures, (C, f, h, w) of a model of clips."""
        time = () if self.frame_step is None else (self.latent_frames(frames),)
        return (self.latent_channels, *time, *self.latent_size(width, height))

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
class VideoRule:
    """How a family is trained on clips; lengths obey `Geometry.frame_step`.

    rate: frames a second that the model was trained at. frames: of a clip where the settings name none. starts: whether
    it starts from a picture, which is the clip's own first frame in training and a file in a sample. vae_frames: that
    its VAE works on at a time, by which the memory of encoding is estimated; None for all of a clip at once. least:
    frames of the shortest clip; above 1 no pictures are trained. longest_sample: frames of the longest sample; None for
    any length.
    """

    rate: float = 16.0
    frames: int = 81
    starts: bool = False
    vae_frames: int | None = 4
    least: int = 1
    longest_sample: int | None = None

    def sample_frames(self, asked: int | None, geometry: Geometry) -> int:
        """Frames of a sample that asks for `asked`, rounded down to a length of the family; None: its usual one."""
        wanted = asked or self.frames
        most = wanted if self.longest_sample is None else min(wanted, self.longest_sample)
        return max(self.least, geometry.whole_frames(most))


@dataclass(frozen=True)
class Experts:
    """How a family has two denoisers of one build. boundary: noise level in (0, 1) from which the first one works.

    part: name of the second one's part, which works below the boundary.
    """

    boundary: float
    part: str = "transformer_2"


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


@dataclass(frozen=True, kw_only=True)
class FamilyFacts(ABC):
    """The torch-free facts of a family. A family that differs in more than data is a subclass.

    `pipeline_class` is what model_index.json names, `same_pipelines` others that hold the same parts.
    `text_rule` says what trimming a caption means: "attended" (padding is attended: not trimmed unless asked), "masked"
    (padding is masked: trimmed freely) or "sink" (zero padding serves as attention sink).
    `default_targets` are LoRA targets: a module path's suffix, or, where it holds a backslash, a regular expression
    that must match the whole path. `options` names settings that only some families have. `objective` is what it is
    trained with: "flow" or "diffusion". `lacks_modes` says of shape modes that it can't have why not.
    `controls`: it edits, starting from control pictures; None for one that takes none.
    `video`: it is trained on clips, and on pictures as clips of one frame; None for a family of pictures.
    `experts`: it has two denoisers, one for high and one for low noise; None for a family of one.
    `fixed_text_length`: text is always `text_length` tokens, or chunks of it, neither set nor trimmed.
    `one_size_batches`: all pictures of a batch must have one size, whatever the shape mode. `caption_template`: what a
    caption is put into before its tokens are counted, of which the first `template_tokens` are left out. `text_before`:
    tokens that the denoiser sees before those that `text_length` counts, of a caption's states by another encoder.
    `text_targets`: as `default_targets`, in the text encoders, of a family where these can be trained. `conv_targets`:
    as `default_targets`, the layers that `conv_dim` adds. `diffusers_layers`: module paths (regular expressions for the
    whole path) that diffusers takes from a LoRA file in kohya's layout; None: all of them, empty: none.
    `diffusers_together`: paths in a block of layers without any of which it refuses such a file; of the groups after
    the first one, only where the file has one of the group.
    `lora_layers`: paths of the layers whose LoRA other programs load, each a regular expression for the whole path.
    `lora_version`: ``ss_base_model_version`` of LoRA files. `lora_prefix`: diffusers' name of the trained part in them;
    `kohya_native`: kohya files go by the names of `lora_layout` and not by diffusers'. `lora_also`: a layout that other
    programs' LoRA files of the family have besides. `checkpoint`: of a family whose models are published as whole
    checkpoints, the parts besides the denoiser that these hold, each with its layout and prefix there. `memory`: what
    its blocks keep for the backward pass; None for one that is not measured yet, whose estimate is rough.
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
    lora_layers: tuple[str, ...]
    lora_version: str
    lora_prefix: str = "transformer"
    memory: FamilyMemory | None = None
    same_pipelines: tuple[str, ...] = ()
    options: frozenset[str] = field(default_factory=frozenset)
    objective: str = "flow"
    lacks_modes: Mapping[str, str] = field(default_factory=dict)
    fixed_text_length: bool = False
    one_size_batches: bool = False
    controls: Controls | None = None
    video: VideoRule | None = None
    experts: Experts | None = None
    caption_template: str = "{}"
    template_tokens: int = 0
    text_before: int = 0
    text_targets: tuple[str, ...] = ()
    conv_targets: tuple[str, ...] = ()
    diffusers_layers: tuple[str, ...] | None = None
    diffusers_together: tuple[tuple[str, ...], ...] = ()
    kohya_native: bool = True
    lora_also: Layout | None = None
    checkpoint: Mapping[str, tuple[Layout, str]] = field(default_factory=dict)

    @property
    def own_options(self) -> frozenset[str]:
        """Settings that not every family has, and this one does: `options`, and those of clips and of experts."""
        clips = frozenset[str]() if self.video is None else VIDEO_OPTIONS
        return self.options | clips | (frozenset[str]() if self.experts is None else EXPERT_OPTIONS)

    @classmethod
    def based_on(cls, other: FamilyFacts, **changes: Any) -> Self:
        """The facts of a variant: those of `other`, but for `changes`."""
        return cls(**{each.name: getattr(other, each.name) for each in fields(other)} | changes)

    @abstractmethod
    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` of a LoRA for the model, as the program writes it that began to."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """Numbers that must agree for the parts to belong together, from their configs."""
        return ()

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """What is wrong with parts that are each whole: of different models, or of a relative that works otherwise."""
        return differing(self.pairs(base), self.title)

    def expert_problems(self, base: BaseModelFiles, choice: str) -> list[Problem]:
        """What to know of the base model where `choice` is the setting train_experts; of a whole model."""
        return []

    def expert_part(self, base: BaseModelFiles, side: Side | None) -> Part:
        """The part that holds the expert `side`: for low noise the second one where `base` has it, else the first."""
        if self.experts is None or side != "low":
            return self.denoiser
        second = self.part(self.experts.part)
        return self.denoiser if base.place(second) is None else second

    def check_base_model(
        self, base: BaseModel, variant: str | None = None, families: Families = MappingProxyType({})
    ) -> list[Problem]:
        """Every problem of the base model; no error when it can be loaded. Reads configs and safetensors headers only.

        variant: of its weight files ("fp16"), where `base` is a path. families: what other pipelines belong to.
        """
        base = BaseModelFiles.at(base, variant)
        problems, wrong = check_files(base, self, self.same_pipelines, families)
        return problems if wrong else problems + self.fit(base)

    def geometry(self, base: BaseModel) -> Geometry:
        """Geometry read from the base model's own configs; ValueError when they can't be read or don't agree."""
        downscale, channels = vae_cells(BaseModelFiles.at(base), self.part("vae"))
        return replace(self.default_geometry, downscale=downscale, latent_channels=channels)

    def scheduler_config(self, base: BaseModel) -> dict[str, Any]:
        """The config of the base model's scheduler; ValueError when it can't be read."""
        return BaseModelFiles.at(base).config(self.part("scheduler"))

    def narrowed(self, base: BaseModel) -> FamilyFacts:
        """The facts with the block classes that this base model has; the family's own where it can't be read."""
        return self

    def picture_tokens(self, base: BaseModel) -> PictureTokens | None:
        """Counts the tokens of a control picture that the text encoder reads; None where it reads none."""
        return None

    def part(self, name: str) -> Part:
        """The part called `name`; KeyError when the family has none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"{self.title} has no part {name!r}")

    def needs_control(self, *, sample: bool) -> bool:
        """Whether a row can't do without a control picture; of training, or of a sample."""
        if sample and self.video is not None and self.video.starts:
            return True
        return self.controls is not None and self.controls.needed

    @property
    def sample_controls(self) -> int:
        """Control pictures that a sample may have; of a family that makes clips from a picture, that one."""
        if self.video is not None and self.video.starts:
            return 1
        return 0 if self.controls is None else self.controls.most

    @property
    def denoiser(self) -> Part:
        """The part that is trained."""
        return next(part for part in self.parts if self.denoiser_class in part.class_names)

    @property
    def native_layout(self) -> Layout | None:
        """The denoiser's layout in its project's own files; None where it comes in diffusers' alone."""
        return next(iter(self.denoiser.layouts), None)

    def lora_layout(self, paths: Iterable[str]) -> Layout | None:
        """The project's own names of a denoiser with layers at `paths`, for LoRA files; None where it has none."""
        return self.native_layout

    def sizes(self, base: BaseModel, variant: str | None = None) -> dict[str, int]:
        """Bytes on disk of each part's weights, by part name (parts without weights are left out)."""
        files = BaseModelFiles.at(base, variant)
        return {part.name: files.bytes(part) for part in self.parts if part.weights}

    def config(self, base: BaseModel, part: str) -> dict[str, Any]:
        """Config of the part called `part`, or {} where it is missing or can't be read."""
        return config_of(BaseModelFiles.at(base), self.part(part))

    def number(self, base: BaseModel, part: str, key: str) -> int | None:
        """A whole number of a part's config; None where there is none."""
        return whole(self.config(base, part), key)
