"""Builds what Qwen-Image-Edit is compared with: diffusers' pipeline, its forward, captions and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline, QwenImageEditPipeline
from PIL import Image
from torch import Tensor, nn
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen2VLProcessor

from backend.config.schema import Config
from backend.models.common.conditioning import controls_in
from backend.models.common.load_options import LoadOptions
from tests.tiny.forward import Batch, gradients
from tests.tiny.qwen_runs import settings as plain_settings

CPU = LoadOptions(torch.float32, torch.device("cpu"))
CAPTIONS = ["a red circle", "", "the small {} cat in a white house, and the large black dog on a tree"]


class PictureProcessor(Qwen2VLProcessor):
    """transformers' own without its part for videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def pipeline_of(base: Path, kind: type[DiffusionPipeline] = QwenImageEditPipeline) -> Any:
    """The pipeline of class `kind`, its text encoder told where the picture is.

    diffusers 0.42 leaves out what the processor says of that (huggingface/diffusers issue 14194); transformers before
    5 found it by itself, which is what the model was trained with.
    """
    pictures = Qwen2VLImageProcessorPil.from_pretrained(base / "processor")
    processor = PictureProcessor(pictures, Qwen2Tokenizer.from_pretrained(base / "processor"), None)
    pipeline = kind.from_pretrained(base, processor=processor)
    pipeline.set_progress_bar_config(disable=True)
    plain = pipeline.text_encoder.forward

    def with_kinds(input_ids: Tensor, **arguments: Any) -> Any:
        kinds = torch.tensor(processor.create_mm_token_type_ids(input_ids.tolist()))
        return plain(input_ids=input_ids, mm_token_type_ids=kinds, **arguments)

    pipeline.text_encoder.forward = with_kinds
    return pipeline


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    draw = np.random.default_rng(seed)
    small = Image.fromarray(draw.integers(0, 256, (4, 4, 3), dtype=np.uint8), "RGB")
    return small.resize((width, height), Image.Resampling.BICUBIC)


def theirs(model: nn.Module, batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Each row alone through diffusers' own forward, called as the pipelines that edit do (``__call__``)."""
    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        parts = [(part.shape[1], part.shape[2], part) for part in (latent, *controls_in(text))]
        packed = [QwenImageEditPipeline._pack_latents(x[None], 1, x.shape[0], h, w) for h, w, x in parts]
        made = model(
            hidden_states=torch.cat(packed, dim=1),
            timestep=sigma[None],
            encoder_hidden_states=text["prompt_embeds"][None],
            encoder_hidden_states_mask=None,
            img_shapes=[[(1, h // 2, w // 2) for h, w, _ in parts]],
            return_dict=False,
        )[0][:, : packed[0].shape[1]]
        outs.append(QwenImageEditPipeline._unpack_latents(made, parts[0][0] * 8, parts[0][1] * 8, 8)[0, :, 0])
    return [x.detach() for x in outs], gradients(model, outs)


def settings(base: Path, images: Path, control: Path, where: Path, **changes: dict) -> Config:
    folders = {"folders": [{"path": str(images), "control_path": str(control)}], "validation_split": 0.25}
    sections = {section: dict(values) for section, values in changes.items()}
    sections["model"] = {"family": "qwen_image_edit"} | sections.get("model", {})
    sections["dataset"] = folders | sections.get("dataset", {})
    return plain_settings(base, images, where, **sections)
