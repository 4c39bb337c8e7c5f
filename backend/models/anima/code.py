"""The code of Anima, as the loop sees it: one fixed set of names (DESIGN section 1)."""

from backend.models.anima.denoise import block_lists, predict, sampling_sigmas
from backend.models.anima.encode import load_text, load_vae
from backend.models.anima.load import empty_denoiser, load_denoiser
from backend.models.anima.loras import BASE_MODEL_VERSION, LORA_LAYERS, architecture

__all__ = [
    "BASE_MODEL_VERSION",
    "LORA_LAYERS",
    "architecture",
    "block_lists",
    "empty_denoiser",
    "load_denoiser",
    "load_text",
    "load_vae",
    "predict",
    "sampling_sigmas",
]
