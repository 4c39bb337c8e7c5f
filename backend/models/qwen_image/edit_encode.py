"""Qwen-Image-Edit's text: Qwen2.5-VL reads caption and control pictures together, as diffusers' pipelines ask.

``QwenImageEditPipeline`` shows one picture, ``QwenImageEditPlusPipeline`` several with a label each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from transformers import Qwen2VLImageProcessorPil

from backend.base.errors import Refused
from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.qwen_image import encode
from backend.models.qwen_image.edit import ASKED, FACTS, IMAGE_TOKEN, PICTURE, TEMPLATE_TOKENS, picture_config
from backend.models.qwen_image.encode import TextStack, load_vae

__all__ = ["EditStack", "load_text", "load_vae"]


@dataclass
class EditStack(TextStack):
    """Qwen2.5-VL with its eyes.

    processor: cuts a picture into the patches that they see. label: in front of each picture, with its number in place
    of {}. label_tokens: tokens of a labelled picture that are not the picture's own.
    """

    processor: Qwen2VLImageProcessorPil
    label: str = ""
    label_tokens: int = 0

    @torch.no_grad()
    def encode_with_pictures(
        self, caption: str, pictures: Sequence[Image.Image], text_length: int
    ) -> dict[str, Tensor]:
        """What the denoiser is told by a caption about `pictures` (RGB), on the encoder's device and in its dtype.

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


def load_text(base: Base | Path, loading: Loading) -> EditStack:
    """Qwen2.5-VL, its tokenizer and its picture processor. Refused when a part is missing or broken, named."""
    base = Base.at(base, loading.variant)
    plain = encode.load_text(base, loading)
    token = plain.tokenizer.get_vocab().get(IMAGE_TOKEN)
    if token is None:
        text = f"The tokenizer does not know {IMAGE_TOKEN}: it is not Qwen2.5-VL's"
        raise Refused(text, f"Choose {FACTS.part('tokenizer').where}.", "model.tokenizer")
    # of a single file the config is the shipped one
    plain.qwen.config.image_token_id = token
    try:
        pictures = Qwen2VLImageProcessorPil.from_dict(picture_config(base))
    except (OSError, ValueError, TypeError, KeyError) as error:
        text = f"{FACTS.part('processor').title} of {base.path} can't be loaded: {error}"
        raise Refused(text, "Copy the folder processor of the model again.", "model.base_model") from error
    return EditStack(plain.qwen, plain.tokenizer, pictures)
