"""Encodes Qwen-Image-Edit's captions: Qwen2.5-VL reads caption and control pictures together, as in diffusers.

``QwenImageEditPipeline`` shows one picture, ``QwenImageEditPlusPipeline`` several with a label each.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import Tensor
from transformers import Qwen2VLImageProcessorPil

from backend.base.errors import Refused
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.parts import Part
from backend.families.qwen_image.edit_facts import (
    ASKED,
    IMAGE_TOKEN,
    LABEL,
    LABEL_TOKENS,
    PICTURE,
    TEMPLATE_TOKENS,
    EditFacts,
)
from backend.families.spec import BaseModel
from backend.models.common.load_options import LoadOptions
from backend.models.qwen_image.denoiser import QwenImage
from backend.models.qwen_image.encoders import TextStack

log = logging.getLogger(__name__)


@dataclass
class EditStack(TextStack):
    """Qwen2.5-VL with its eyes.

    processor: cuts a picture into the patches that they see. label: in front of each picture, with its number in place
    of {}. label_tokens: tokens of a labelled picture that are not the picture's own.
    """

    processor: Qwen2VLImageProcessorPil
    label: ClassVar[str] = ""
    label_tokens: ClassVar[int] = 0

    @classmethod
    def load(cls, facts: EditFacts, base: BaseModelFiles, loading: LoadOptions) -> Self:
        """Qwen2.5-VL, its tokenizer and its picture processor. Refused when a part is missing or broken, named."""
        plain = TextStack.load(facts, base, loading)
        token = plain.tokenizer.get_vocab().get(IMAGE_TOKEN)
        if token is None:
            text = f"The tokenizer does not know {IMAGE_TOKEN}: it is not Qwen2.5-VL's"
            raise Refused(text, f"Choose {facts.part('tokenizer').where}.", "model.tokenizer")
        # of a single file the config is the shipped one
        plain.qwen.config.image_token_id = token
        try:
            pictures = Qwen2VLImageProcessorPil.from_dict(facts.picture_config(base))
        except (OSError, ValueError, TypeError, KeyError) as error:
            text = f"{facts.part('processor').title} of {base.path} can't be loaded: {error}"
            raise Refused(text, "Copy the folder processor of the model again.", "model.base_model") from error
        return cls(plain.qwen, plain.tokenizer, pictures)

    @torch.no_grad()
    def encode_with_pictures(
        self, caption: str, pictures: Sequence[Image.Image], text_length: int
    ) -> dict[str, Tensor]:
        """What the denoiser receives of a caption about `pictures` (RGB), on the encoder's device and in its dtype.

        text_length: states that are kept at most, the pictures' own and their labels' not counted. ``prompt_embeds``
        (L, D): the last states of the pictures' and the caption's tokens and of what the template has around them.
        """
        seen = self.processor(images=list(pictures), return_tensors="pt").to(self.qwen.device)
        grid = seen["image_grid_thw"]
        counts = [int(size) // self.processor.merge_size**2 for size in grid.prod(dim=1)]
        shown = (
            self.label.format(number) + PICTURE.replace(IMAGE_TOKEN, IMAGE_TOKEN * count)
            for number, count in enumerate(counts, 1)
        )
        # not format: a caption may hold braces
        asked = ASKED.replace("{}", "".join(shown) + caption)
        tokens = self.tokenizer([asked], return_tensors="pt").to(self.qwen.device)
        # Where the picture is: diffusers 0.42 leaves this out, and transformers 5 then places its tokens in one line
        # instead of rows and columns, as the model was trained with (huggingface/diffusers issue 14194).
        kinds = (tokens.input_ids == self.qwen.config.image_token_id).int()
        states = self.qwen.model(
            input_ids=tokens.input_ids,
            attention_mask=tokens.attention_mask,
            pixel_values=seen["pixel_values"],
            image_grid_thw=grid,
            mm_token_type_ids=kinds,
        ).last_hidden_state
        most = sum(counts) + len(counts) * self.label_tokens + text_length
        return {"prompt_embeds": states[0, TEMPLATE_TOKENS:][:most].to(self.qwen.dtype)}


class EditPlusStack(EditStack):
    """The same with a label in front of each picture, as 2509 and 2511 have it."""

    label = LABEL
    label_tokens = LABEL_TOKENS


class QwenImageEdit(QwenImage):
    """The code of Qwen-Image-Edit: Qwen-Image's, but for what reads captions."""

    text_stack = EditStack


class QwenImageEditPlus(QwenImage):
    """The code of Qwen-Image-Edit-2509 and -2511."""

    text_stack = EditPlusStack

    def load_denoiser(self, base: BaseModel, loading: LoadOptions, part: Part | None = None) -> Any:
        """As the class's; the log tells which of the two it is."""
        model = super().load_denoiser(base, loading, part)
        if model.config.zero_cond_t:
            log.info("Qwen-Image-Edit-2511: control pictures receive a timestep of zero (zero_cond_t)")
        else:
            log.info("Qwen-Image-Edit-2509: control pictures receive the step's own timestep (no zero_cond_t)")
        return model
