"""Where other programs load the LoRA of a Stable Diffusion UNet."""

from __future__ import annotations

SD15_LAYOUT = "kohya_unet"
"""``lora_unet_<diffusers name>.lora_down.weight`` with alpha, as sd-scripts writes for Stable Diffusion 1.5: it,
ComfyUI, A1111, Forge and diffusers load it."""

SDXL_LAYOUT = "kohya_ldm"
"""``lora_unet_<latent diffusion's name>.lora_down.weight`` with alpha, as sd-scripts writes for SDXL, whose UNet it
keeps in those names (``input_blocks``): it, ComfyUI, A1111, Forge and diffusers load it. By diffusers' names sd-scripts
would load nothing, without a word, and A1111 all but one upsampler and two embedders."""

LORA_LAYERS: tuple[str, ...] = (
    r"(down_blocks\.\d+|mid_block|up_blocks\.\d+)\.attentions\.\d+\.(proj_in|proj_out)",
    r"(down_blocks\.\d+|mid_block|up_blocks\.\d+)\.attentions\.\d+\.transformer_blocks\.\d+\."
    r"(attn[12]\.(to_q|to_k|to_v|to_out\.0)|ff\.net\.(0\.proj|2))",
    r"(down_blocks\.\d+|mid_block|up_blocks\.\d+)\.resnets\.\d+\.(time_emb_proj|conv1|conv2|conv_shortcut)",
    r"(down_blocks\.\d+\.downsamplers|up_blocks\.\d+\.upsamplers)\.0\.conv",
    r"conv_in|conv_out",
    r"(time_embedding|add_embedding)\.linear_[12]",
    r"te[12]?\.text_model\.encoder\.layers\.\d+\.(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])",
)
"""Module paths (regular expressions for the whole path) of linear layers and convolutions in ComfyUI's key map of UNets
(``unet_to_diffusers`` in comfy/utils.py), and of CLIP text encoders (comfy/lora.py)."""
