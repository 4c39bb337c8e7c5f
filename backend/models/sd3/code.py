"""The code of SD3, as the loop sees it: one fixed set of names (DESIGN section 1)."""

from backend.models.sd3.denoise import block_lists, predict, running_order, sampling_sigmas
from backend.models.sd3.encode import load_text, load_vae
from backend.models.sd3.load import empty_denoiser, load_denoiser
from backend.models.sd3.loras import BASE_MODEL_VERSION, LORA_LAYERS, architecture

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
    "running_order",
    "sampling_sigmas",
]
