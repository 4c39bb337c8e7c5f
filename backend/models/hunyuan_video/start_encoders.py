"""Encodes a section of a clip with what FramePack is shown of the rest, as diffusers' pipeline does."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import SiglipImageProcessorPil, SiglipVisionModel

from backend.base.errors import Refused
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import SETTING
from backend.families.hunyuan_video.sections import FRAMES, SECTION, sections_between
from backend.families.spec import BaseModel, FamilyFacts
from backend.models.common import model_parts
from backend.models.common.load_options import LoadOptions
from backend.models.hunyuan_video.sections import shown_before, shown_behind
from backend.models.hunyuan_video.vae import HunyuanVaeStack


@dataclass
class StartStack(HunyuanVaeStack):
    """The autoencoder and SigLIP's eyes."""

    vision: Any = None
    processor: Any = None

    @classmethod
    def whole(cls, base: BaseModel, loading: LoadOptions, facts: FamilyFacts) -> Self:
        """Both. Refused when a part is missing or broken, named."""
        files = BaseModelFiles.at(base, loading.variant)
        vae = HunyuanVaeStack.load(base, loading, facts.part("vae")).vae
        vision = model_parts.encoder(SiglipVisionModel, files, loading.plain(), facts.part("image_encoder"))
        try:
            processor = SiglipImageProcessorPil.from_dict(files.config(facts.part("feature_extractor")))
        except (OSError, ValueError, TypeError) as error:
            text = f"the config of the image processor of SigLIP can't be used: {error}"
            raise Refused(text, "Copy the model again from where it came from.", SETTING) from error
        return cls(vae, vision, processor)

    def encode_row(self, pixels: Tensor) -> dict[str, Tensor]:
        """Of a clip (3, 36 n + 1, H, W) the start and one of its n sections, told by a checksum of the clip.

        ``latent`` (C, 1 + 9, h, w), and what `FramePack` reads besides. ValueError for a picture or a shorter clip.
        """
        frames = pixels.shape[1] if pixels.ndim == 4 else 1
        count = (frames - 1) // FRAMES
        if not count or (frames - 1) % FRAMES:
            raise ValueError(f"FramePack is trained on clips of {FRAMES} n + 1 frames; this one has {frames}")
        whole = self.encode(pixels[None])[0]
        section = zlib.crc32(((pixels.float().cpu() + 1) * 127.5).round().to(torch.uint8).numpy().tobytes()) % count
        start, first = whole[:, :1], 1 + SECTION * section
        row = {"latent": torch.cat([start, whole[:, first : first + SECTION]], dim=1)}
        return row | self._told(pixels[:, 0], *self._shown(whole, section, count))

    def _shown(self, whole: Tensor, section: int, count: int) -> tuple[Tensor, int]:
        """What is behind a section of `count`, with the start, and how many sections are between both."""
        rest = whole[:, 1 + SECTION * (section + 1) :]
        return shown_behind(whole[:, :1], rest), sections_between(section, count)

    def encode_start(self, picture: Tensor, frames: int = FRAMES + 1) -> dict[str, Tensor]:
        """What the first section drawn of a clip that starts from `picture` (3, H, W) in [-1, 1] receives of it."""
        start = self.encode(picture[None])[0]
        return self._told(picture, *self._shown(start, 0, 1))

    def _told(self, picture: Tensor, behind: Tensor, between: int) -> dict[str, Tensor]:
        return {"behind": behind, "between": torch.tensor(between), "image_embeds": self._seen(picture)}

    @torch.no_grad()
    def _seen(self, picture: Tensor) -> Tensor:
        """(729, D) float32."""
        image = (picture.float().cpu() + 1) / 2
        cut = self.processor(images=image, return_tensors="pt", do_rescale=False).pixel_values
        pixels = cut.to(self.vision.device, self.vision.dtype)
        return self.vision(pixel_values=pixels).last_hidden_state[0].float()

    def for_decoding(self) -> Self:
        """As the class's: the eyes take no part in it."""
        self.vision = None
        return self

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """As the class's, the eyes too."""
        wanted = {name: value for name, value in {"device": device, "dtype": dtype}.items() if value is not None}
        if self.vision is not None:
            self.vision.to(**wanted)
        return super().to(device, dtype)


@dataclass
class OnwardStack(StartStack):
    """The same of F1, which is shown what is before a section."""

    def _shown(self, whole: Tensor, section: int, count: int) -> tuple[Tensor, int]:
        return shown_before(whole[:, :1], whole[:, : 1 + SECTION * section]), 0
