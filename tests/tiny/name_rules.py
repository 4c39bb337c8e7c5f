"""How other programs name the layers of SDXL's UNet in LoRA files, written down from their own code and not from ours.

Each takes the layers of the published checkpoint, by its own list of tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Shapes = Mapping[str, tuple[int, ...]]
UNET = "model.diffusion_model."


def modules(published: Shapes) -> dict[str, tuple[int, ...]]:
    """Matrices and convolutions of the UNet: module path -> shape of the weight."""
    return {
        name.removeprefix(UNET).removesuffix(".weight"): shape
        for name, shape in published.items()
        if name.startswith(UNET) and name.endswith(".weight") and len(shape) > 1
    }


def comfyui(published: Shapes) -> dict[str, str]:
    """LoRA name -> module path (comfy/lora.py, model_lora_keys_unet): all weights, points as underscores."""
    return {f"lora_unet_{path.replace('.', '_')}": path for path in modules(published)}


def sd_scripts(published: Shapes, large: bool) -> dict[str, str]:
    """LoRA name -> module path (networks/lora.py, LoRANetwork.create_modules).

    Linear layers and 1x1 convolutions below a Transformer2DModel; large: the larger convolutions, and all of
    ResnetBlock2D, Downsample2D and Upsample2D, too (library/sdxl_original_unet.py has the places of these).
    """
    inside = r"(input_blocks\.\d+|output_blocks\.\d+|middle_block)"
    transformer = re.compile(inside + r"\.1\.(proj_in|proj_out|transformer_blocks\..+)")
    others = re.compile(inside + r"\.\d\.(in_layers\.2|emb_layers\.1|out_layers\.3|skip_connection|op|conv)")
    return {
        f"lora_unet_{path.replace('.', '_')}": path
        for path in modules(published)
        if transformer.fullmatch(path) or (large and others.fullmatch(path))
    }


_SUFFIXES = {
    "conv1": "in_layers_2",
    "conv2": "out_layers_3",
    "norm1": "in_layers_0",
    "norm2": "out_layers_0",
    "time_emb_proj": "emb_layers_1",
    "conv_shortcut": "skip_connection",
}


def a1111(published: Shapes, names: Iterable[str]) -> dict[str, str | None]:
    """LoRA name -> module path (extensions-builtin/Lora/networks.py, load_network); None where it finds none.

    diffusers' names are turned into the checkpoint's (convert_diffusers_name_to_compvis), for any other ``lora_unet``
    is replaced. Forge has ComfyUI's key map.
    """
    known = {f"diffusion_model_{path.replace('.', '_')}": path for path in modules(published)}
    return {name: _module_of(known, name) for name in names}


def _module_of(known: Mapping[str, str], name: str) -> str | None:
    return known.get(_compvis(name)) or known.get(name.replace("lora_unet", "diffusion_model"))


def _compvis(name: str) -> str:
    if match := re.match(r"lora_unet_conv_in(.*)", name):
        return f"diffusion_model_input_blocks_0_0{match[1]}"
    if match := re.match(r"lora_unet_conv_out(.*)", name):
        return f"diffusion_model_out_2{match[1]}"
    if match := re.match(r"lora_unet_time_embedding_linear_(\d+)(.*)", name):
        return f"diffusion_model_time_embed_{int(match[1]) * 2 - 2}{match[2]}"
    if match := re.match(r"lora_unet_(down|up)_blocks_(\d+)_(attentions|resnets)_(\d+)_(.+)", name):
        down, layer = match[1] == "down", int(match[2]) * 3 + int(match[4])
        place = f"input_blocks_{1 + layer}" if down else f"output_blocks_{layer}"
        return f"diffusion_model_{place}_{_inner(match[3], match[5])}"
    if match := re.match(r"lora_unet_mid_block_(attentions|resnets)_(\d+)_(.+)", name):
        number = 1 if match[1] == "attentions" else int(match[2]) * 2
        return f"diffusion_model_middle_block_{number}_{_inner(match[1], match[3]).partition('_')[2]}"
    if match := re.match(r"lora_unet_down_blocks_(\d+)_downsamplers_0_conv", name):
        return f"diffusion_model_input_blocks_{3 + int(match[1]) * 3}_0_op"
    if match := re.match(r"lora_unet_up_blocks_(\d+)_upsamplers_0_conv", name):
        level = int(match[1])
        return f"diffusion_model_output_blocks_{2 + level * 3}_{2 if level > 0 else 1}_conv"
    return name


def _inner(kind: str, rest: str) -> str:
    return f"1_{rest}" if kind == "attentions" else f"0_{_SUFFIXES.get(rest, rest)}"
