"""The code of the FLUX family, as the loop sees it: one fixed set of names (DESIGN section 1)."""

from backend.models.flux.denoise import block_lists, predict, sampling_sigmas
from backend.models.flux.encode import load_text, load_vae
from backend.models.flux.load import empty_denoiser, load_denoiser
from backend.models.flux.loras import BASE_MODEL_VERSION, LORA_ALSO, LORA_LAYERS, architecture

__all__ = [
    "BASE_MODEL_VERSION",
    "LORA_ALSO",
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
