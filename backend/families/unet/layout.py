"""Reads the UNet of Stable Diffusion 1.5 and SDXL in their whole checkpoints.

Names: CompVis/latent-diffusion ``openaimodel.py``. Blocks are numbered through; with two residual layers a level, as
the published models have, input block n (from 1) is layer (n - 1) mod 3 of level (n - 1) div 3, the third being the
downsampler, and output block n is layer n mod 3 of level n div 3. Distilled ones may have one layer a level.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules

_LEAF = r"(?P<leaf>weight|bias)"
_MOST_LEVELS = 4

_RESNET = (
    (r"in_layers\.0", "norm1"),
    (r"in_layers\.2", "conv1"),
    (r"emb_layers\.1", "time_emb_proj"),
    (r"out_layers\.0", "norm2"),
    (r"out_layers\.3", "conv2"),
    ("skip_connection", "conv_shortcut"),
)


def _resnet(theirs: str, ours: str) -> list[Rule]:
    return [Rule(rf"{theirs}\.{old}\.{_LEAF}", (f"{ours}.{new}.{{leaf}}",)) for old, new in _RESNET]


def _attention(theirs: str, ours: str) -> Rule:
    return Rule(
        rf"{theirs}\.(?P<rest>(?:norm|proj_in|proj_out|transformer_blocks\.\d+\..+)\.(?:weight|bias))",
        (f"{ours}.{{rest}}",),
    )


def _input_blocks(layers: int) -> list[Rule]:
    rules = [Rule(rf"input_blocks\.0\.0\.{_LEAF}", ("conv_in.{leaf}",))]
    for number in range(1, _MOST_LEVELS * (layers + 1)):
        level, layer = divmod(number - 1, layers + 1)
        theirs, ours = rf"input_blocks\.{number}", f"down_blocks.{level}"
        if layer == layers:
            rules.append(Rule(rf"{theirs}\.0\.op\.{_LEAF}", (f"{ours}.downsamplers.0.conv.{{leaf}}",)))
            continue
        rules += _resnet(rf"{theirs}\.0", f"{ours}.resnets.{layer}")
        rules.append(_attention(rf"{theirs}\.1", f"{ours}.attentions.{layer}"))
    return rules


def _output_blocks(layers: int) -> list[Rule]:
    rules = []
    for number in range(_MOST_LEVELS * (layers + 1)):
        level, layer = divmod(number, layers + 1)
        theirs, ours = rf"output_blocks\.{number}", f"up_blocks.{level}"
        rules += _resnet(rf"{theirs}\.0", f"{ours}.resnets.{layer}")
        if layer == layers:
            # behind the attention, or in its place where a level has none
            rules += [Rule(rf"{theirs}\.{n}\.conv\.{_LEAF}", (f"{ours}.upsamplers.0.conv.{{leaf}}",)) for n in (2, 1)]
        rules.append(_attention(rf"{theirs}\.1", f"{ours}.attentions.{layer}"))
    return rules


@cache
def ldm_unet(layers: int = 2) -> Layout:
    """The layout of a UNet with so many residual layers a level."""
    return Layout(
        name="ldm_unet",
        title="a Stable Diffusion UNet in latent diffusion's own layout",
        markers=("input_blocks.0.0.weight", "middle_block.1.proj_in.weight", "output_blocks.0.0.in_layers.2.weight"),
        prefixes=("model.diffusion_model.", "diffusion_model.", ""),
        rules=(
            Rule(rf"time_embed\.0\.{_LEAF}", ("time_embedding.linear_1.{leaf}",)),
            Rule(rf"time_embed\.2\.{_LEAF}", ("time_embedding.linear_2.{leaf}",)),
            Rule(rf"label_emb\.0\.0\.{_LEAF}", ("add_embedding.linear_1.{leaf}",)),
            Rule(rf"label_emb\.0\.2\.{_LEAF}", ("add_embedding.linear_2.{leaf}",)),
            *_input_blocks(layers),
            *_resnet(r"middle_block\.0", "mid_block.resnets.0"),
            _attention(r"middle_block\.1", "mid_block.attentions.0"),
            *_resnet(r"middle_block\.2", "mid_block.resnets.1"),
            *_output_blocks(layers),
            Rule(rf"out\.0\.{_LEAF}", ("conv_norm_out.{leaf}",)),
            Rule(rf"out\.2\.{_LEAF}", ("conv_out.{leaf}",)),
        ),
    )


LDM_UNET = ldm_unet()


def measure(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of a UNet."""
    levels = count_modules(shapes, "down_blocks")
    measured: Config = {
        "in_channels": shapes["conv_in.weight"][1],
        "block_out_channels": [shapes[f"down_blocks.{i}.resnets.0.conv1.weight"][0] for i in range(levels)],
        "cross_attention_dim": shapes["mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight"][1],
        "use_linear_projection": len(shapes["mid_block.attentions.0.proj_in.weight"]) == 2,
    }
    if "add_embedding.linear_1.weight" in shapes:
        measured["projection_class_embeddings_input_dim"] = shapes["add_embedding.linear_1.weight"][1]
    heads = config.get("attention_head_dim")
    if isinstance(heads, list):
        # The field means heads a level; SDXL's are all 64 wide.
        measured["attention_head_dim"] = [max(1, width // 64) for width in measured["block_out_channels"]]
        depths = [count_modules(shapes, f"down_blocks.{i}.attentions.0.transformer_blocks") for i in range(levels)]
        measured["transformer_layers_per_block"] = [max(1, depth) for depth in depths]
    return measured
