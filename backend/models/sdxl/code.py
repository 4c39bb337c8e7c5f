"""The code of the SDXL family, as the loop sees it: one fixed set of names (DESIGN section 1)."""

from backend.models.sdxl.encode import TextStack, conditions, load_text
from backend.models.sdxl.facts import scheduler_config
from backend.models.sdxl.load import BASE_MODEL_VERSION, architecture, empty_denoiser, load_denoiser, load_vae
from backend.models.unet.blocks import block_lists, running_order
from backend.models.unet.denoise import predict
from backend.models.unet.loras import LORA_LAYERS
from backend.models.unet.loras import SDXL_LAYOUT as LORA_LAYOUT

__all__ = [
    "BASE_MODEL_VERSION",
    "LORA_LAYERS",
    "LORA_LAYOUT",
    "TextStack",
    "architecture",
    "block_lists",
    "conditions",
    "empty_denoiser",
    "load_denoiser",
    "load_text",
    "load_vae",
    "predict",
    "running_order",
    "scheduler_config",
]
