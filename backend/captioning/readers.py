"""Turns images and a text into a model's inputs, and its tokens into captions: a class for each kind of model.

torchvision is not needed: images go through the processors of transformers that use Pillow and numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedModel
from transformers.models.blip.processing_blip import BlipProcessor
from transformers.models.florence2.processing_florence2 import Florence2Processor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from backend.base.errors import Refused
from backend.families.files.headers import read_json
from backend.runs.captioning.model_folder import CaptionModel

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_QWEN_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
"""The form of a question, for folders that don't say it."""


class Reader(ABC):
    """What stands before and after a model. asked: the text that goes with each image."""

    def __init__(self, model: CaptionModel, asked: str, megapixels: float) -> None:
        self.asked = asked
        self.images = AutoImageProcessor.from_pretrained(model.folder, backend="pil", **_LOCAL)
        self.tokenizer = AutoTokenizer.from_pretrained(model.folder, **_LOCAL)

    @abstractmethod
    def inputs(self, images: Sequence[Image.Image], model: PreTrainedModel) -> dict[str, Tensor]:
        """Arguments of `generate` for a batch of RGB images, on the CPU."""

    def captions(self, tokens: Tensor, inputs: dict[str, Tensor]) -> list[str]:
        """The captions in what `generate` gave, [batch, length]."""
        return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]


class BlipReader(Reader):
    """BLIP. The text is how each caption begins, and stays in it."""

    def __init__(self, model: CaptionModel, asked: str, megapixels: float) -> None:
        super().__init__(model, asked, megapixels)
        self.processor = BlipProcessor(self.images, self.tokenizer)

    def inputs(self, images: Sequence[Image.Image], model: PreTrainedModel) -> dict[str, Tensor]:
        text = [self.asked] * len(images) if self.asked else None
        return dict(self.processor(images=list(images), text=text, return_tensors="pt"))

    def captions(self, tokens: Tensor, inputs: dict[str, Tensor]) -> list[str]:
        # the first token only says that a text begins, and is a word of some tokenizers
        return super().captions(tokens[:, 1:], inputs)


class Blip2Reader(Reader):
    """BLIP-2. The text is how each caption begins. Its prompt is a place for each query, the start token, the text."""

    def inputs(self, images: Sequence[Image.Image], model: PreTrainedModel) -> dict[str, Tensor]:
        config = model.config
        if config.image_token_index is None:
            text = "this BLIP-2 folder is of before transformers 4.46, and names no token for the image"
            raise Refused(text, "Download the model again: its config.json now has image_token_index.", "model")
        prompt = [config.image_token_index] * config.num_query_tokens
        # T5 has no token for the start; its empty text is the end alone
        start, end = getattr(config.text_config, "bos_token_id", None), config.text_config.eos_token_id
        prompt += self.tokenizer(self.asked)["input_ids"] if self.asked else [end if start is None else start]
        ids = torch.tensor([prompt] * len(images))
        pixels = self.images(list(images), return_tensors="pt")["pixel_values"]
        return {"pixel_values": pixels, "input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def captions(self, tokens: Tensor, inputs: dict[str, Tensor]) -> list[str]:
        # a language model of decoders alone gives its prompt back
        prompt = inputs["input_ids"]
        if tokens.shape[1] >= prompt.shape[1] and torch.equal(tokens[:, : prompt.shape[1]], prompt):
            tokens = tokens[:, prompt.shape[1] :]
        return [f"{self.asked} {text}".strip() for text in super().captions(tokens, inputs)]


class FlorenceReader(Reader):
    """Florence-2. The text is one of its tasks, such as <DETAILED_CAPTION>."""

    def __init__(self, model: CaptionModel, asked: str, megapixels: float) -> None:
        super().__init__(model, asked, megapixels)
        self.processor = Florence2Processor(self.images, self.tokenizer)

    def inputs(self, images: Sequence[Image.Image], model: PreTrainedModel) -> dict[str, Tensor]:
        return dict(self.processor(images=list(images), text=[self.asked] * len(images), return_tensors="pt"))


class _WithoutVideos:
    """Lets a processor of transformers be made without its part for videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)  # type: ignore[misc]


class _Qwen2(_WithoutVideos, Qwen2VLProcessor):
    pass


class _Qwen25(_WithoutVideos, Qwen2_5_VLProcessor):
    pass


class _Qwen3(_WithoutVideos, Qwen3VLProcessor):
    pass


_PROCESSORS = {"qwen2_vl": _Qwen2, "qwen2_5_vl": _Qwen25, "qwen3_vl": _Qwen3}


class QwenReader(Reader):
    """Qwen2-VL to Qwen3-VL. The text is an instruction; images larger than `megapixels` are reduced."""

    def __init__(self, model: CaptionModel, asked: str, megapixels: float) -> None:
        super().__init__(model, asked, megapixels)
        most = round(megapixels * 1e6)
        size = self.images.size
        self.images.size = {
            "shortest_edge": min(size["shortest_edge"], most),
            "longest_edge": min(size["longest_edge"], most),
        }
        self.tokenizer.padding_side = "left"
        kind = _PROCESSORS[model.model_type]
        template = _chat_template(model.folder) or self.tokenizer.chat_template or _QWEN_CHAT
        self.processor = kind(self.images, self.tokenizer, None, chat_template=template)

    def inputs(self, images: Sequence[Image.Image], model: PreTrainedModel) -> dict[str, Tensor]:
        content = [{"type": "image"}, {"type": "text", "text": self.asked}]
        text = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        batch = self.processor(images=list(images), text=[text] * len(images), padding=True, return_tensors="pt")
        return dict(batch)

    def captions(self, tokens: Tensor, inputs: dict[str, Tensor]) -> list[str]:
        return super().captions(tokens[:, inputs["input_ids"].shape[1] :], inputs)


def _chat_template(folder: Path) -> str | None:
    """The form of a question where the folder keeps it in a file of its own, as all versions have done it."""
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, ValueError):
        pass
    for name in ("chat_template.json", "processor_config.json"):
        try:
            template = read_json(folder / name).get("chat_template")
        except (OSError, ValueError):
            continue
        if isinstance(template, str):
            return template
    return None


READERS: dict[str, type[Reader]] = {
    "blip": BlipReader,
    "blip-2": Blip2Reader,
    "florence2": FlorenceReader,
    **dict.fromkeys(_PROCESSORS, QwenReader),
}
"""By `model_type` in config.json."""
