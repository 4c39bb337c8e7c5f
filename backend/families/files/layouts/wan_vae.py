"""Names of the VAE of Wan and Qwen-Image in Wan's own layout.

Names: Wan-Video/Wan2.1 ``wan/modules/vae.py``, where the decoder's blocks are numbered through: three residual layers
and an upsampler a level; Wan-Video/Wan2.2 ``wan/modules/vae2_2.py``, where each level is a list of its own.
"""

from __future__ import annotations

from backend.families.files.layouts.rules import Layout, Rule

_LEAF = r"(?P<leaf>weight|bias)"

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

# what both VAEs have around their levels
_ENDS = (
    Rule(rf"conv1\.{_LEAF}", ("quant_conv.{leaf}",)),
    Rule(rf"conv2\.{_LEAF}", ("post_quant_conv.{leaf}",)),
    Rule(rf"{_SIDE}\.conv1\.{_LEAF}", ("{side}.conv_in.{leaf}",)),
    Rule(rf"{_SIDE}\.head\.0\.gamma", ("{side}.norm_out.gamma",)),
    Rule(rf"{_SIDE}\.head\.2\.{_LEAF}", ("{side}.conv_out.{leaf}",)),
    *_residual(rf"{_SIDE}\.middle\.0", "{side}.mid_block.resnets.0"),
    *_residual(rf"{_SIDE}\.middle\.2", "{side}.mid_block.resnets.1"),
    Rule(rf"{_SIDE}\.middle\.1\.(?P<rest>(?:norm|to_qkv|proj)\..+)", ("{side}.mid_block.attentions.0.{rest}",)),
)

WAN_VAE = Layout(
    name="wan_vae",
    title="the VAE of Wan or Qwen-Image in Wan's own layout",
    markers=("encoder.downsamples.0.residual.2.weight", "decoder.upsamples.0.residual.2.weight", "conv1.weight"),
    prefixes=("", "vae."),
    rules=(
        *_ENDS,
        *_residual(r"encoder\.downsamples\.(?P<down>\d+)", "encoder.down_blocks.{down}"),
        Rule(
            r"encoder\.downsamples\.(?P<down>\d+)\.(?P<rest>(?:resample|time_conv)\..+)",
            ("encoder.down_blocks.{down}.{rest}",),
        ),
        *_ups(),
    ),
)


def _levels(side: str, theirs: str, ours: str, layers: int, last: str) -> list[Rule]:
    """Levels that are lists of `layers` residual layers, with what changes the size, `last`, behind them."""
    level = rf"{side}\.{theirs}\.(?P<level>\d+)\.{theirs}"
    rules = []
    for layer in range(layers):
        rules += _residual(rf"{level}\.{layer}", f"{side}.{ours}.{{level}}.resnets.{layer}")
    rest = rf"{level}\.{layers}\.(?P<rest>(?:resample|time_conv)\..+)"
    return [*rules, Rule(rest, (f"{side}.{ours}.{{level}}.{last}.{{rest}}",))]


# wan2.2_vae.safetensors, of the 5B model alone
WAN22_VAE = Layout(
    name="wan22_vae",
    title="the VAE of Wan 2.2 5B in Wan's own layout",
    markers=("encoder.downsamples.0.downsamples.0.residual.2.weight", "conv1.weight"),
    prefixes=("", "vae."),
    rules=(
        *_ENDS,
        *_levels("encoder", "downsamples", "down_blocks", 2, "downsampler"),
        *_levels("decoder", "upsamples", "up_blocks", 3, "upsampler"),
    ),
)
