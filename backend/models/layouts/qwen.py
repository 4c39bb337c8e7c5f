"""Qwen-Image's parts as ComfyUI publishes them in single files, with Wan 2.1's own VAE layout.

The transformer and the text encoder keep the names of their first publication (diffusers', and Hugging Face's before
transformers moved the language model); a prefix may come before them. VAE: Wan-Video/Wan2.1 ``wan/modules/vae.py``,
where the decoder's blocks are numbered through: three residual layers and an upsampler a level.
"""

from __future__ import annotations

from backend.models.layouts.rules import Layout, Rule

_LEAF = r"(?P<leaf>weight|bias)"

QWEN_DIT = Layout(
    name="qwen_dit",
    title="a Qwen-Image transformer",
    markers=("transformer_blocks.0.attn.add_q_proj.weight", "txt_norm.weight", "img_in.weight"),
    prefixes=("", "model.diffusion_model.", "diffusion_model."),
    # Qwen-Image-Edit-2511's, by which ComfyUI tells it from 2509
    marks=(("__index_timestep_zero__", "zero_cond_t"),),
    rules=(
        Rule(
            r"(?P<name>(?:transformer_blocks|img_in|txt_in|txt_norm|time_text_embed|norm_out|proj_out)\..+)",
            ("{name}",),
        ),
    ),
)

QWEN_VL = Layout(
    name="qwen_vl",
    title="a Qwen2.5-VL language model",
    markers=("model.layers.0.self_attn.q_proj.weight", "visual.patch_embed.proj.weight"),
    prefixes=("", "text_encoders.qwen25_7b.transformer."),
    rules=(Rule(r"(?P<name>(?:model|visual)\..+|lm_head\.weight)", ("{name}",)),),
)

_RESIDUAL = {r"residual\.0": "norm1", r"residual\.2": "conv1", r"residual\.3": "norm2", r"residual\.6": "conv2"}


def _residual(theirs: str, ours: str) -> list[Rule]:
    rules = [
        Rule(rf"{theirs}\.{old}\.(?P<leaf>weight|bias|gamma)", (f"{ours}.{new}.{{leaf}}",))
        for old, new in _RESIDUAL.items()
    ]
    return [*rules, Rule(rf"{theirs}\.shortcut\.{_LEAF}", (f"{ours}.conv_shortcut.{{leaf}}",))]


def _ups() -> list[Rule]:
    rules = []
    for level in range(4):
        for layer in range(3):
            rules += _residual(
                rf"decoder\.upsamples\.{4 * level + layer}", f"decoder.up_blocks.{level}.resnets.{layer}"
            )
        rules.append(
            Rule(
                rf"decoder\.upsamples\.{4 * level + 3}\.(?P<rest>(?:resample|time_conv)\..+)",
                (f"decoder.up_blocks.{level}.upsamplers.0.{{rest}}",),
            )
        )
    return rules


_SIDE = r"(?P<side>encoder|decoder)"

WAN_VAE = Layout(
    name="wan_vae",
    title="the VAE of Wan or Qwen-Image in Wan's own layout",
    markers=("encoder.downsamples.0.residual.2.weight", "decoder.upsamples.0.residual.2.weight", "conv1.weight"),
    prefixes=("", "vae."),
    rules=(
        Rule(rf"conv1\.{_LEAF}", ("quant_conv.{leaf}",)),
        Rule(rf"conv2\.{_LEAF}", ("post_quant_conv.{leaf}",)),
        Rule(rf"{_SIDE}\.conv1\.{_LEAF}", ("{side}.conv_in.{leaf}",)),
        Rule(rf"{_SIDE}\.head\.0\.gamma", ("{side}.norm_out.gamma",)),
        Rule(rf"{_SIDE}\.head\.2\.{_LEAF}", ("{side}.conv_out.{leaf}",)),
        *_residual(rf"{_SIDE}\.middle\.0", "{side}.mid_block.resnets.0"),
        *_residual(rf"{_SIDE}\.middle\.2", "{side}.mid_block.resnets.1"),
        Rule(rf"{_SIDE}\.middle\.1\.(?P<rest>(?:norm|to_qkv|proj)\..+)", ("{side}.mid_block.attentions.0.{rest}",)),
        *_residual(r"encoder\.downsamples\.(?P<down>\d+)", "encoder.down_blocks.{down}"),
        Rule(
            r"encoder\.downsamples\.(?P<down>\d+)\.(?P<rest>(?:resample|time_conv)\..+)",
            ("encoder.down_blocks.{down}.{rest}",),
        ),
        *_ups(),
    ),
)
