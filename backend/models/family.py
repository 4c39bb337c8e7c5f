"""Defines what the code of a model family must give, and what it may give with its default.

A run reaches a family's code through an object of such a class (`backend.models.family_classes.load_family`) and
through nothing else. What is missing is named when the object is made. What needs no torch is in the family's facts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from backend.families.files.base_model import BaseModelFiles
from backend.families.files.parts import Part
from backend.families.spec import BaseModel, FamilyFacts
from backend.models.common import model_parts
from backend.models.common.guidance import guided
from backend.models.common.load_options import LoadOptions
from backend.models.common.tokens import flow_sigmas
from backend.models.common.vae import VaeStack
from backend.shapes.attention_routes import Route
from backend.shapes.shape_runtime import ShapeRuntime

Conditions = Callable[[tuple[int, int], tuple[float, float], tuple[int, int]], Mapping[str, Tensor]]
"""Of the file's size, the left and top of its cut and the bucket's size, all in px -> tensors for the denoiser."""


class TextStack(Protocol):
    """The text encoders of a base model, with their tokenizers."""

    @classmethod
    def model_parts(cls, facts: Any, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """All of them. Refused when a part is missing or broken, named."""
        ...

    def encode(self, captions: Sequence[str], text_length: int) -> list[dict[str, Tensor]]:
        """The tensors that `Family.predict` takes as a row's text, on the encoders' device and in their dtype."""
        ...


class Sections(Protocol):
    """The sections of one sample, in the order in which they are drawn; new for each sample."""

    count: int

    def told(self, text: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The conditioning of the next section, from that of the clip."""

    def add(self, latent: Tensor) -> None:
        """Note the latent of a section that is drawn."""

    def whole(self) -> Tensor:
        """The latent of the clip, from those of all sections."""


class Family(ABC):
    """A family's code. facts: what needs no torch; families of one build are one class with other facts."""

    model: ClassVar[Any]
    """The denoiser's class in diffusers."""

    text_stack: ClassVar[type[TextStack]]
    """What encodes captions."""

    vae_stack: ClassVar[type[VaeStack]] = VaeStack
    """What encodes pictures."""

    conditions: ClassVar[Conditions | None] = None
    """What the denoiser takes of a picture's size and cut; None for nothing."""

    def __init__(self, facts: FamilyFacts) -> None:
        missing = [name for name in ("model", "text_stack") if not hasattr(type(self), name)]
        if missing:
            raise TypeError(f"{type(self).__name__} lacks {' and '.join(missing)}, which a family must give")
        self.facts = facts

    @abstractmethod
    def block_lists(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """The stacks of equal blocks by class name, ready to be compiled: what compile must see is in place."""

    @abstractmethod
    def install(self, denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
        """Make `route` the attention of every block. longest: joint tokens that a dynamic graph is bounded to."""

    @abstractmethod
    def predict(
        self,
        denoiser: nn.Module,
        noisy: Sequence[Tensor],
        level: Tensor,
        text: Sequence[Mapping[str, Tensor]],
        guidance: float | None,
        shapes: ShapeRuntime,
    ) -> list[Tensor]:
        """What the denoiser predicts for each noisy latent, on real tokens only; wait-free on the device.

        noisy: B latents (C, h, w). level: (B,) float32, sigmas in [0, 1] or the timesteps of a schedule. text: B dicts
        of what the text stack gave. guidance: embedded guidance value, None where the model has none. Returns B tensors
        (C, h, w) float32 in the order given.
        """

    def running_order(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """The blocks in the order in which they run, for what follows them one by one (block swap)."""
        return self.block_lists(denoiser)

    def load_denoiser(self, base: BaseModel, loading: LoadOptions, part: Part | None = None) -> Any:
        """The denoiser, as `backend.models.common.model_parts.denoiser`. part: that holds it; None for the first."""
        return model_parts.denoiser(self.model, base, loading, part or self.facts.denoiser)

    def empty_denoiser(self, base: BaseModel, part: Part | None = None) -> Any:
        """The denoiser without weights, as `backend.models.common.model_parts.without_weights`. part: as above."""
        return model_parts.without_weights(self.model, base, part or self.facts.denoiser)

    def load_text(self, base: BaseModel, loading: LoadOptions) -> Any:
        """The text encoders with their tokenizers. Refused when a part is missing or broken, named."""
        return self.text_stack.load(self.facts, BaseModelFiles.at(base, loading.variant), loading)

    def load_vae(self, base: BaseModel, loading: LoadOptions) -> VaeStack:
        """The VAE. Refused when it is missing or broken, named."""
        return self.vae_stack.load(base, loading, self.facts.part("vae"))

    def guided(self, toward: Tensor, away: Tensor, scale: float) -> Tensor:
        """True guidance of both outputs (C, h, w), as most pipelines have it."""
        return guided(toward, away, scale)

    def sections(self, frames: int) -> Sections | None:
        """The sections of a sample of `frames`, of a family that draws a clip in such; None where it is drawn whole."""
        return None

    def sampling_sigmas(self, steps: int, image_tokens: int, base: BaseModel) -> list[float]:
        """Noise levels of `steps` sampling steps, `steps` + 1 of them, descending to 0, of a family trained by flow.

        As most pipelines call their scheduler: see `flow_sigmas`.
        """
        return flow_sigmas(steps, image_tokens, self.facts.scheduler_config(base))
