"""The code of Qwen-Image-Edit-2509 and -2511, as the loop sees it: Qwen-Image-Edit's, with labelled pictures."""

from backend.models.qwen_image.edit_code import (
    BASE_MODEL_VERSION,
    LORA_LAYERS,
    block_lists,
    empty_denoiser,
    guided,
    load_vae,
    predict,
    sampling_sigmas,
)
from backend.models.qwen_image.edit_plus_load import load_denoiser, load_text
from backend.models.qwen_image.loras import edit_plus_architecture as architecture

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
