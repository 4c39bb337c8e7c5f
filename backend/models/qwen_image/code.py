"""The code of Qwen-Image, as the loop sees it: one fixed set of names (DESIGN section 1)."""

from backend.models.qwen_image.denoise import block_lists, guided, predict, sampling_sigmas
from backend.models.qwen_image.encode import load_text, load_vae
from backend.models.qwen_image.load import empty_denoiser, load_denoiser
from backend.models.qwen_image.loras import BASE_MODEL_VERSION, LORA_LAYERS, architecture

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
