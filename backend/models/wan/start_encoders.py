"""Encodes a clip together with the picture that it starts from, as diffusers' ``WanImageToVideoPipeline`` does."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPImageProcessorPil, CLIPVisionModel

from backend.base.errors import Refused
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import SETTING
from backend.families.spec import BaseModel, FamilyFacts
from backend.families.wan.i2v_facts import GIVEN
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions
from backend.models.wan.autoencoder import WanVaeStack
from backend.models.wan.denoiser import Wan

log = logging.getLogger(__name__)


@dataclass
class StartStack(WanVaeStack):
    """The autoencoder and the eyes of CLIP. vision, processor: None for a model that reads no tokens of the picture."""

    vision: Any = None
    processor: Any = None
    step: int = 4
    """Frames that one latent frame stands for."""

    @classmethod
    def whole(cls, base: BaseModel, loading: LoadOptions, facts: FamilyFacts) -> Self:
        """The autoencoder, and the eyes where the family has them. Refused when a part is missing or broken, named."""
        files = BaseModelFiles.at(base, loading.variant)
        vae = WanVaeStack.load(base, loading, facts.part("vae")).vae
        frames = facts.default_geometry.frame_step or 1
        if not any(part.name == "image_encoder" for part in facts.parts):
            return cls(vae, step=frames)
        vision = model_parts.encoder(CLIPVisionModel, files, loading.plain(), facts.part("image_encoder"))
        try:
            processor = CLIPImageProcessorPil.from_dict(files.config(facts.part("image_processor")))
        except (OSError, ValueError, TypeError) as error:
            text = f"the config of the image processor of CLIP can't be used: {error}"
            raise Refused(text, "Copy the model again from where it came from.", SETTING) from error
        return cls(vae, vision, processor, frames)

    def encode_row(self, pixels: Tensor) -> dict[str, Tensor]:
        """As the class's: the clip, and what `encode_start` makes of its first frame."""
        clip = pixels if pixels.ndim == 4 else pixels[:, None]
        return super().encode_row(clip) | self.encode_start(clip[:, 0], clip.shape[1])

    @torch.no_grad()
    def encode_start(self, picture: Tensor, frames: int) -> dict[str, Tensor]:
        """What the denoiser receives of `picture` (3, H, W) in [-1, 1], the start of a clip of `frames`; float32.

        ``start`` (4 + C, f, h, w): which frames are given, and the latent of the picture with grey frames behind it.
        ``image_embeds`` (T, D): what CLIP's eyes see of it, in the layer before their last, where the model reads that.
        """
        clip = torch.zeros(3, frames, *picture.shape[1:], dtype=picture.dtype, device=picture.device)
        clip[:, 0] = picture
        latent = self.encode(clip[None])[0]
        mask = torch.zeros(GIVEN, *latent.shape[1:], device=latent.device)
        mask[:, 0] = 1.0
        start = {"start": torch.cat([mask, latent])}
        return start if self.vision is None else start | {"image_embeds": self._seen(picture)}

    def _seen(self, picture: Tensor) -> Tensor:
        values = ((picture.float().cpu() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        image = Image.fromarray(values.permute(1, 2, 0).numpy(), "RGB")
        cut = self.processor(images=image, return_tensors="pt").pixel_values
        pixels = cut.to(self.vision.device, self.vision.dtype)
        return self.vision(pixel_values=pixels, output_hidden_states=True).hidden_states[-2][0].float()

    def for_decoding(self) -> Self:
        """As the class's: the eyes take no part in it."""
        self.vision = None
        return self

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """As the class's, the eyes too."""
        if self.vision is not None:
            self.vision.to(device=device, dtype=dtype)
        return super().to(device, dtype)


class WanImage(Wan):
    """The code of Wan's models that start from a picture."""

    vae_stack = StartStack

    def load_vae(self, base: BaseModel, loading: LoadOptions) -> StartStack:
        """As the class's, with the eyes."""
        return StartStack.whole(base, loading, self.facts)
