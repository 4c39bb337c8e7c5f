"""The code of Qwen-Image-Edit, as the loop sees it: Qwen-Image's, but for what reads captions."""

from backend.models.qwen_image.code import (
    LORA_LAYERS,
    block_lists,
    empty_denoiser,
    guided,
    load_denoiser,
    predict,
    sampling_sigmas,
)
from backend.models.qwen_image.edit_encode import load_text, load_vae
from backend.models.qwen_image.loras import EDIT_MODEL_VERSION as BASE_MODEL_VERSION
from backend.models.qwen_image.loras import edit_architecture as architecture

__all__ = [
    "BASE_MODEL_VERSION",
    "LORA_LAYERS",
    "architecture",
    "block_lists",
    "empty_denoiser",
    "guided",
    "load_denoiser",
    "load_text",
    "load_vae",
    "predict",
    "sampling_sigmas",
]
