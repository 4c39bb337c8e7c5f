"""Describes Qwen-Image-Edit, and -2509 and -2511: Qwen-Image, and control pictures that go in twice. Torch-free.

Behind the image tokens, as latents, and to Qwen2.5-VL, which reads them together with the caption. The transformer
can't be told from Qwen-Image's by its tensors, so that a person chooses the family.

Of 2509 and 2511 each picture keeps its proportions, at one area as latents and at a smaller one for Qwen2.5-VL, and has
a label with its number in the template. 2511 also gives the tokens of control pictures a timestep of zero
(``zero_cond_t`` of the transformer), which a folder's config says, and of single files ComfyUI's.

Class names, template, sizes and order of tokens: diffusers `QwenImageEditPipeline` and `QwenImageEditPlusPipeline`
(0.42); folders: Qwen/Qwen-Image-Edit, Qwen/Qwen-Image-Edit-2509, Qwen/Qwen-Image-Edit-2511.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from backend.base.problems import Problem
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import read_json
from backend.families.files.parts import Part
from backend.families.qwen_image.facts import FACTS, STREAM, QwenImageFacts
from backend.families.spec import BaseModel, Controls, PictureTokens

IMAGE_TOKEN = "<|image_pad|>"
"""Stands in the template for each token that the picture becomes."""

PICTURE = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
"""Stands in the template for a picture."""

ASKED = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""What Qwen2.5-VL is asked, of pictures and caption; the model was trained on the states behind these very words."""

TEMPLATE_TOKENS = 64
"""Tokens of the template before the pictures: their states are left out."""

LABEL = "Picture {}: "
"""In front of each picture in the template of 2509 and 2511."""

LABEL_TOKENS = 7
"""Tokens of a label and of what encloses the picture behind it: a word, a blank, a digit, a colon, a blank and two."""

PROCESSOR = Part(
    "processor",
    "the image processor of Qwen2.5-VL",
    "processor",
    ("Qwen2VLProcessor", "Qwen2_5_VLProcessor"),
    (("preprocessor_config.json", "processor_config.json"),),
    shipped="qwen_image/configs/processor.json",
)


class EditFacts(QwenImageFacts):
    """The facts of Qwen-Image-Edit."""

    def picture_config(self, base: BaseModel) -> dict[str, Any]:
        """What the model's processor does with a picture; the published one's where the model is of single files.

        ValueError when it can't be read.
        """
        place = BaseModelFiles.at(base).place(PROCESSOR)
        if place is None:
            return BaseModelFiles.at(base).config(PROCESSOR)
        own, whole = (place.path / name for name in PROCESSOR.files[0])
        return read_json(own) if own.is_file() else read_json(whole).get("image_processor", {})

    def picture_tokens(self, base: BaseModel) -> PictureTokens:
        """Counts the tokens that Qwen2.5-VL makes of a picture, by its size in px.

        The picture is scaled to whole tokens at nearly its own size, within the least and the most pixels of the config
        (transformers `smart_resize`). A config that can't be read counts as the published one: the check names it.
        """
        try:
            config = self.picture_config(base)
        except (OSError, ValueError):
            config = self.picture_config(BaseModelFiles(None))
        size = config.get("size") or {}
        least = config.get("min_pixels") or size.get("shortest_edge", 56 * 56)
        most = config.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280)
        side = config.get("patch_size", 14) * config.get("merge_size", 2)

        def count(width: int, height: int) -> int:
            rows, columns = round(height / side), round(width / side)
            if rows * columns * side**2 > most:
                shrunk = math.sqrt(width * height / most)
                rows, columns = (max(1, math.floor(edge / shrunk / side)) for edge in (height, width))
            elif rows * columns * side**2 < least:
                grown = math.sqrt(least / (width * height))
                rows, columns = (math.ceil(edge * grown / side) for edge in (height, width))
            return rows * columns

        return count

    def lora_architecture(self, base: BaseModel) -> str:
        """As Qwen-Image's."""
        return "Qwen-Image-Edit/lora"


class EditPlusFacts(EditFacts):
    """The facts of Qwen-Image-Edit-2509 and -2511."""

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """As Qwen-Image's; a warning where a folder's config says otherwise than the setting zero_cond_t."""
        problems = super().fit(base)
        configured, switch = self.config(base, "transformer").get("zero_cond_t"), base.switches.get("zero_cond_t")
        if switch is not None and bool(configured) != switch:
            text = (
                f"zero_cond_t is {'on' if switch else 'off'}, but the transformer's config says otherwise and is used"
            )
            problems.append(
                Problem("model.zero_cond_t", None, text, "Set it to auto: for a folder it is known.", "warning")
            )
        return problems

    def picture_tokens(self, base: BaseModel) -> PictureTokens:
        """Counts the tokens that Qwen2.5-VL makes of a picture with its label, by its size in px as it is read."""
        count = super().picture_tokens(base)
        return lambda width, height: count(width, height) + LABEL_TOKENS

    def lora_architecture(self, base: BaseModel) -> str:
        """As Qwen-Image's; 2509 is called Plus. Told by what the model's file says."""
        try:
            net = BaseModelFiles.at(base).config(self.part("transformer"))
        except (OSError, ValueError):
            return super().lora_architecture(base)
        return f"Qwen-Image-Edit-{'2511' if net.get('zero_cond_t') else 'Plus'}/lora"


_TRANSFORMER, *_OTHERS = FACTS.parts

EDIT = EditFacts.based_on(
    FACTS,
    name="qwen_image_edit",
    title="Qwen-Image-Edit",
    pipeline_class="QwenImageEditPipeline",
    same_pipelines=("QwenImageEditInpaintPipeline",),
    parts=(
        replace(_TRANSFORMER, where="qwen_image_edit_bf16.safetensors or another Qwen-Image-Edit transformer"),
        *_OTHERS,
        PROCESSOR,
    ),
    controls=Controls(needed=True),
    # the picture's tokens are counted by its size
    caption_template=ASKED.replace("{}", PICTURE.replace(IMAGE_TOKEN, "") + "{}"),
    template_tokens=TEMPLATE_TOKENS,
    lora_version="qwen_image_edit",
)

# Two scales and two gates for each token of a picture, where 2511 has them by its timestep; 2509 has not.
_STILL = replace(STREAM, half=STREAM.half + 4)
_BLOCK = replace(FACTS.memory.blocks[0], kept={"image": _STILL, "text": STREAM})

EDIT_PLUS = EditPlusFacts.based_on(
    EDIT,
    name="qwen_image_edit_plus",
    title="Qwen-Image-Edit-2509/2511",
    pipeline_class="QwenImageEditPlusPipeline",
    same_pipelines=(),
    parts=(
        replace(_TRANSFORMER, where="qwen_image_edit_2509_bf16.safetensors, qwen_image_edit_2511_bf16.safetensors"),
        *EDIT.parts[1:],
    ),
    controls=Controls(most=3, needed=True, area=1024, read_area=384),
    options=EDIT.options | {"control_resolution", "zero_cond_t"},
    # pictures and their labels are counted by their sizes
    caption_template=ASKED,
    memory=replace(FACTS.memory, blocks=(_BLOCK,)),
)
