"""Names of Wan's transformer as its makers and ComfyUI publish it in single files, and what its shapes say.

Names: Wan-Video/Wan2.1 ``wan/modules/model.py``, alone or behind ``model.diffusion_model.``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules

_LEAF = r"(?P<leaf>weight|bias)"
_BLOCK, _OURS = r"blocks\.(?P<n>\d+)", "blocks.{n}"

_ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}


def _blocks() -> list[Rule]:
    rules = [Rule(rf"{_BLOCK}\.modulation", (f"{_OURS}.scale_shift_table",))]
    for theirs, ours in (("self_attn", "attn1"), ("cross_attn", "attn2")):
        rules += [
            Rule(rf"{_BLOCK}\.{theirs}\.{old}\.{_LEAF}", (f"{_OURS}.{ours}.{new}.{{leaf}}",))
            for old, new in _ATTENTION.items()
        ]
        rules += [
            Rule(rf"{_BLOCK}\.{theirs}\.norm_{which}\.weight", (f"{_OURS}.{ours}.norm_{which}.weight",))
            for which in "qk"
        ]
    # the norm before the text has numbers of its own, and is the third in the makers' order of names
    rules.append(Rule(rf"{_BLOCK}\.norm3\.{_LEAF}", (f"{_OURS}.norm2.{{leaf}}",)))
    feed_forward = (("0", "net.0.proj"), ("2", "net.2"))
    return rules + [
        Rule(rf"{_BLOCK}\.ffn\.{theirs}\.{_LEAF}", (f"{_OURS}.ffn.{ours}.{{leaf}}",)) for theirs, ours in feed_forward
    ]


def _embedders() -> list[Rule]:
    return [
        Rule(rf"{word}_embedding\.{at}\.{_LEAF}", (f"condition_embedder.{word}_embedder.linear_{number}.{{leaf}}",))
        for word in ("text", "time")
        for at, number in ((0, 1), (2, 2))
    ]


RULES = (
    *_blocks(),
    *_embedders(),
    Rule(rf"time_projection\.1\.{_LEAF}", ("condition_embedder.time_proj.{leaf}",)),
    Rule(rf"patch_embedding\.{_LEAF}", ("patch_embedding.{leaf}",)),
    Rule(rf"head\.head\.{_LEAF}", ("proj_out.{leaf}",)),
    Rule(r"head\.modulation", ("scale_shift_table",)),
)

MARKERS = ("blocks.0.self_attn.q.weight", "blocks.0.cross_attn.k.weight", "patch_embedding.weight", "head.modulation")

PREFIXES = ("", "model.diffusion_model.", "diffusion_model.")

WAN_DIT = Layout(
    name="wan_dit",
    title="a Wan transformer",
    markers=MARKERS,
    # what starts from a picture, and what is steered by more than text
    absent=(
        "blocks.0.cross_attn.k_img.weight",
        "vace_patch_embedding.weight",
        "control_adapter.conv.weight",
        "ref_conv.weight",
        "face_adapter.fuser_blocks.0.k_norm.weight",
    ),
    prefixes=PREFIXES,
    # a table that is computed again
    ignored=("freqs",),
    rules=RULES,
)


# beside the text, the picture's keys and values, and its way into the model's width
_PICTURE = (
    *(
        Rule(rf"{_BLOCK}\.cross_attn\.{which}_img\.{_LEAF}", (f"{_OURS}.attn2.add_{which}_proj.{{leaf}}",))
        for which in "kv"
    ),
    Rule(rf"{_BLOCK}\.cross_attn\.norm_k_img\.weight", (f"{_OURS}.attn2.norm_added_k.weight",)),
    *(
        Rule(rf"img_emb\.proj\.{at}\.{_LEAF}", (f"condition_embedder.image_embedder.{name}.{{leaf}}",))
        for at, name in ((0, "norm1"), (1, "ff.net.0.proj"), (3, "ff.net.2"), (4, "norm2"))
    ),
)

WAN_I2V_DIT = Layout(
    name="wan_i2v_dit",
    title="a Wan image-to-video transformer",
    markers=(*MARKERS, "blocks.0.cross_attn.k_img.weight", "img_emb.proj.1.weight"),
    # what ends with a picture too
    absent=("img_emb.emb_pos", "vace_patch_embedding.weight", "control_adapter.conv.weight", "ref_conv.weight"),
    prefixes=PREFIXES,
    ignored=("freqs",),
    rules=(*RULES, *_PICTURE),
)


def measure(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of Wan's transformer."""
    width, channels = shapes["patch_embedding.weight"][:2]
    cells = config["patch_size"][0] * config["patch_size"][1] * config["patch_size"][2]
    return {
        "in_channels": channels,
        "out_channels": shapes["proj_out.weight"][0] // cells,
        "num_layers": count_modules(shapes, "blocks"),
        "num_attention_heads": width // config["attention_head_dim"],
        "ffn_dim": shapes["blocks.0.ffn.net.0.proj.weight"][0],
        "text_dim": shapes["condition_embedder.text_embedder.linear_1.weight"][1],
        "freq_dim": shapes["condition_embedder.time_embedder.linear_1.weight"][1],
    }


def measure_i2v(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of Wan's transformer that starts from a picture."""
    measured = measure(shapes, config)
    width = measured["num_attention_heads"] * config["attention_head_dim"]
    features = shapes["condition_embedder.image_embedder.norm1.weight"][0]
    return measured | {"image_dim": features, "added_kv_proj_dim": width}
