"""Maps names of the image autoencoder of latent diffusion (SD 1.5, SDXL, FLUX's ``ae.safetensors``).

Names: CompVis/latent-diffusion ``ldm/modules/diffusionmodules/model.py``; black-forest-labs/flux
``modules/autoencoder.py`` kept them. The decoder's levels are counted from the other end in diffusers, and attention
has 1x1 convolutions where diffusers has matrices.
"""

from __future__ import annotations

from backend.families.files.layouts.rules import Layout, Rule

_LEAF = r"(?P<leaf>weight|bias)"
_SIDE = r"(?P<side>encoder|decoder)"
_RESNET = r"(?P<part>norm1|conv1|norm2|conv2)"


def _resnets(theirs: str, ours: str) -> tuple[Rule, ...]:
    return (
        Rule(rf"{theirs}\.{_RESNET}\.{_LEAF}", (f"{ours}.{{part}}.{{leaf}}",)),
        Rule(rf"{theirs}\.nin_shortcut\.{_LEAF}", (f"{ours}.conv_shortcut.{{leaf}}",)),
    )


LDM_VAE = Layout(
    name="ldm_vae",
    title="a VAE in latent diffusion's own layout",
    markers=("encoder.conv_in.weight", "decoder.conv_in.weight", "decoder.mid.block_1.conv1.weight"),
    prefixes=("", "first_stage_model.", "vae."),
    ignored=(r"loss\..*", r"model_ema\..*"),
    rules=(
        Rule(rf"{_SIDE}\.(?P<conv>conv_in|conv_out)\.{_LEAF}", ("{side}.{conv}.{leaf}",)),
        Rule(rf"{_SIDE}\.norm_out\.{_LEAF}", ("{side}.conv_norm_out.{leaf}",)),
        Rule(rf"(?P<conv>quant_conv|post_quant_conv)\.{_LEAF}", ("{conv}.{leaf}",)),
        *_resnets(r"encoder\.down\.(?P<down>\d+)\.block\.(?P<layer>\d+)", "encoder.down_blocks.{down}.resnets.{layer}"),
        Rule(
            rf"encoder\.down\.(?P<down>\d+)\.downsample\.conv\.{_LEAF}",
            ("encoder.down_blocks.{down}.downsamplers.0.conv.{leaf}",),
        ),
        *_resnets(r"decoder\.up\.(?P<up>\d+)\.block\.(?P<layer>\d+)", "decoder.up_blocks.{~up}.resnets.{layer}"),
        Rule(
            rf"decoder\.up\.(?P<up>\d+)\.upsample\.conv\.{_LEAF}",
            ("decoder.up_blocks.{~up}.upsamplers.0.conv.{leaf}",),
        ),
        *_resnets(rf"{_SIDE}\.mid\.block_1", "{side}.mid_block.resnets.0"),
        *_resnets(rf"{_SIDE}\.mid\.block_2", "{side}.mid_block.resnets.1"),
        Rule(rf"{_SIDE}\.mid\.attn_1\.norm\.{_LEAF}", ("{side}.mid_block.attentions.0.group_norm.{leaf}",)),
        Rule(
            rf"{_SIDE}\.mid\.attn_1\.(?P<to>[qkv])\.{_LEAF}",
            ("{side}.mid_block.attentions.0.to_{to}.{leaf}",),
            turn="matrix",
        ),
        Rule(
            rf"{_SIDE}\.mid\.attn_1\.proj_out\.{_LEAF}",
            ("{side}.mid_block.attentions.0.to_out.0.{leaf}",),
            turn="matrix",
        ),
    ),
)
