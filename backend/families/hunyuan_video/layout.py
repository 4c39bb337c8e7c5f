r"""Reads HunyuanVideo's transformer, VAE and LLaVA-Llama-3 as Tencent, ComfyUI and others publish them in single files.

Names: Tencent-Hunyuan/HunyuanVideo ``hyvideo/modules/models.py`` and ``token_refiner.py``, and those that ComfyUI saves
its files under (``HunyuanVideo.process_unet_state_dict``), which are FLUX's where the parts are alike. Shift and scale
of the last layer's modulation are the other way round in diffusers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules

_LEAF = r"(?P<leaf>weight|bias)"
_DOUBLE, _SINGLE = r"double_blocks\.(?P<n>\d+)", r"single_blocks\.(?P<n>\d+)"
_TO_DOUBLE, _TO_SINGLE = "transformer_blocks.{n}", "single_transformer_blocks.{n}"
_REFINER = r"txt_in\.individual_token_refiner\.blocks\.(?P<n>\d+)"
_TO_REFINER = "context_embedder.token_refiner.refiner_blocks.{n}"
_QKV = ("to_q", "to_k", "to_v")
_NORMS = (r"\.norm\.query_norm\.scale", r"\.norm\.key_norm\.scale")

_PREFIXES = ("", "model.model.", "model.diffusion_model.", "diffusion_model.", "model.", "module.")
"""What lies before the transformer's names: nothing in Tencent's files, the second where ComfyUI has saved the file."""


def _named(theirs: str, ours: str) -> Rule:
    return Rule(rf"{theirs}\.{_LEAF}", (f"{ours}.{{leaf}}",))


def _pair(theirs: str, ours: str, first: str, second: str) -> tuple[Rule, ...]:
    """Two layers of an embedder."""
    return _named(rf"{theirs}\.{first}", f"{ours}.linear_1"), _named(rf"{theirs}\.{second}", f"{ours}.linear_2")


def _stream(theirs: str, norm: str, qkv: tuple[str, ...], out: str, added: str, ff: str, comfy: bool) -> list[Rule]:
    """One stream (image or text) of a double block."""
    attention = rf"{_DOUBLE}\.{theirs}_attn"
    norms = _NORMS if comfy else (r"_q_norm\.weight", r"_k_norm\.weight")
    inside, first, second = (r"\.", "0", "2") if comfy else ("_", "fc1", "fc2")
    return [
        _named(rf"{_DOUBLE}\.{theirs}_mod\.{'lin' if comfy else 'linear'}", f"{_TO_DOUBLE}.{norm}.linear"),
        Rule(rf"{attention}{inside}qkv\.{_LEAF}", tuple(f"{_TO_DOUBLE}.attn.{name}.{{leaf}}" for name in qkv)),
        Rule(rf"{attention}{norms[0]}", (f"{_TO_DOUBLE}.attn.norm_{added}q.weight",)),
        Rule(rf"{attention}{norms[1]}", (f"{_TO_DOUBLE}.attn.norm_{added}k.weight",)),
        _named(rf"{attention}{inside}proj", f"{_TO_DOUBLE}.attn.{out}"),
        _named(rf"{_DOUBLE}\.{theirs}_mlp\.{first}", f"{_TO_DOUBLE}.{ff}.net.0.proj"),
        _named(rf"{_DOUBLE}\.{theirs}_mlp\.{second}", f"{_TO_DOUBLE}.{ff}.net.2"),
    ]


def _single(comfy: bool) -> list[Rule]:
    norms = _NORMS if comfy else (r"\.q_norm\.weight", r"\.k_norm\.weight")
    return [
        _named(rf"{_SINGLE}\.modulation\.{'lin' if comfy else 'linear'}", f"{_TO_SINGLE}.norm.linear"),
        # query, key, value and the feed-forward's four widths in one matrix
        Rule(
            rf"{_SINGLE}\.linear1\.{_LEAF}",
            (*(f"{_TO_SINGLE}.attn.{name}.{{leaf}}" for name in _QKV), f"{_TO_SINGLE}.proj_mlp.{{leaf}}"),
            ratio=(1, 1, 1, 4),
        ),
        _named(rf"{_SINGLE}\.linear2", f"{_TO_SINGLE}.proj_out"),
        Rule(f"{_SINGLE}{norms[0]}", (f"{_TO_SINGLE}.attn.norm_q.weight",)),
        Rule(f"{_SINGLE}{norms[1]}", (f"{_TO_SINGLE}.attn.norm_k.weight",)),
    ]


def _refiner(comfy: bool) -> list[Rule]:
    """The two blocks through which the text goes first, and what they receive."""
    inside, first, second = (r"\.", "0", "2") if comfy else ("_", "fc1", "fc2")
    timestep = ("in_layer", "out_layer") if comfy else (r"mlp\.0", r"mlp\.2")
    pooled = ("in_layer", "out_layer") if comfy else ("linear_1", "linear_2")
    embedder = "context_embedder.time_text_embed"
    return [
        _named(r"txt_in\.input_embedder", "context_embedder.proj_in"),
        *_pair(r"txt_in\.t_embedder", f"{embedder}.timestep_embedder", *timestep),
        *_pair(r"txt_in\.c_embedder", f"{embedder}.text_embedder", *pooled),
        Rule(rf"{_REFINER}\.(?P<norm>norm[12])\.{_LEAF}", (f"{_TO_REFINER}.{{norm}}.{{leaf}}",)),
        Rule(
            rf"{_REFINER}\.self_attn{inside}qkv\.{_LEAF}",
            tuple(f"{_TO_REFINER}.attn.{name}.{{leaf}}" for name in _QKV),
        ),
        _named(rf"{_REFINER}\.self_attn{inside}proj", f"{_TO_REFINER}.attn.to_out.0"),
        _named(rf"{_REFINER}\.mlp\.{first}", f"{_TO_REFINER}.ff.net.0.proj"),
        _named(rf"{_REFINER}\.mlp\.{second}", f"{_TO_REFINER}.ff.net.2"),
        _named(rf"{_REFINER}\.adaLN_modulation\.1", f"{_TO_REFINER}.norm_out.linear"),
    ]


def _transformer(comfy: bool) -> tuple[Rule, ...]:
    layers = ("in_layer", "out_layer") if comfy else (r"mlp\.0", r"mlp\.2")
    added = ("add_q_proj", "add_k_proj", "add_v_proj")
    return (
        _named(r"img_in\.proj", "x_embedder.proj"),
        *_pair("time_in", "time_text_embed.timestep_embedder", *layers),
        *_pair("guidance_in", "time_text_embed.guidance_embedder", *layers),
        *_pair("vector_in", "time_text_embed.text_embedder", "in_layer", "out_layer"),
        *_refiner(comfy),
        *_stream("img", "norm1", _QKV, "to_out.0", "", "ff", comfy),
        *_stream("txt", "norm1_context", added, "to_add_out", "added_", "ff_context", comfy),
        *_single(comfy),
        _named(r"final_layer\.linear", "proj_out"),
        Rule(rf"final_layer\.adaLN_modulation\.1\.{_LEAF}", ("norm_out.linear.{leaf}",), turn="swap_halves"),
    )


_TEXT_MARK = "txt_in.individual_token_refiner.blocks.0.norm1.weight"

HUNYUAN_COMFY = Layout(
    name="hunyuan_comfy",
    title="a HunyuanVideo transformer in ComfyUI's layout",
    markers=("double_blocks.0.img_attn.qkv.weight", "vector_in.in_layer.weight", _TEXT_MARK),
    prefixes=_PREFIXES,
    rules=_transformer(comfy=True),
)
"""``hunyuan_video_t2v_720p_bf16.safetensors`` where ComfyUI has saved it; the layers of LoRA files too."""

HUNYUAN_TENCENT = Layout(
    name="hunyuan_tencent",
    title="a HunyuanVideo transformer in Tencent's own layout",
    markers=("double_blocks.0.img_attn_qkv.weight", "vector_in.in_layer.weight", _TEXT_MARK),
    prefixes=_PREFIXES,
    rules=_transformer(comfy=False),
)
"""Tencent's file as others have made a safetensors file of it; LoRA files of musubi-tuner and diffusion-pipe."""


def measure(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of HunyuanVideo's transformer."""
    width, channels, _, patch, _ = shapes["x_embedder.proj.weight"]
    head = shapes["transformer_blocks.0.attn.norm_q.weight"][0]
    return {
        "in_channels": channels,
        "out_channels": shapes["proj_out.weight"][0] // patch**2,
        "num_layers": count_modules(shapes, "transformer_blocks"),
        "num_single_layers": count_modules(shapes, "single_transformer_blocks"),
        "num_refiner_layers": count_modules(shapes, "context_embedder.token_refiner.refiner_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "text_embed_dim": shapes["context_embedder.proj_in.weight"][1],
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
        # the shipped proportions of frames, rows and columns
        "rope_axes_dim": [head // 8, 7 * head // 16, 7 * head // 16],
    }


_RESNET = r"(?P<part>norm1|norm2|conv1\.conv|conv2\.conv)"
_SIDE = r"(?P<side>encoder|decoder)"


def _resnets(theirs: str, ours: str) -> tuple[Rule, ...]:
    return (
        Rule(rf"{theirs}\.{_RESNET}\.{_LEAF}", (f"{ours}.{{part}}.{{leaf}}",)),
        _named(rf"{theirs}\.nin_shortcut\.conv", f"{ours}.conv_shortcut.conv"),
    )


HUNYUAN_VAE = Layout(
    name="hunyuan_vae",
    title="HunyuanVideo's VAE in ComfyUI's layout",
    markers=("encoder.conv_in.conv.weight", "decoder.mid.block_1.conv1.conv.weight", "post_quant_conv.weight"),
    prefixes=("", "first_stage_model.", "vae."),
    rules=(
        Rule(rf"{_SIDE}\.(?P<conv>conv_in|conv_out)\.conv\.{_LEAF}", ("{side}.{conv}.conv.{leaf}",)),
        Rule(rf"{_SIDE}\.norm_out\.{_LEAF}", ("{side}.conv_norm_out.{leaf}",)),
        Rule(rf"(?P<conv>quant_conv|post_quant_conv)\.{_LEAF}", ("{conv}.{leaf}",)),
        *_resnets(r"encoder\.down\.(?P<down>\d+)\.block\.(?P<layer>\d+)", "encoder.down_blocks.{down}.resnets.{layer}"),
        _named(
            r"encoder\.down\.(?P<down>\d+)\.downsample\.conv\.conv",
            "encoder.down_blocks.{down}.downsamplers.0.conv.conv",
        ),
        *_resnets(r"decoder\.up\.(?P<up>\d+)\.block\.(?P<layer>\d+)", "decoder.up_blocks.{~up}.resnets.{layer}"),
        _named(r"decoder\.up\.(?P<up>\d+)\.upsample\.conv\.conv", "decoder.up_blocks.{~up}.upsamplers.0.conv.conv"),
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


def measure_vae(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of ``AutoencoderKLHunyuanVideo``."""
    levels = count_modules(shapes, "encoder.down_blocks")
    return {
        "block_out_channels": [
            shapes[f"encoder.down_blocks.{i}.resnets.0.conv1.conv.weight"][0] for i in range(levels)
        ],
        "layers_per_block": count_modules(shapes, "encoder.down_blocks.0.resnets"),
        "latent_channels": shapes["decoder.conv_in.conv.weight"][1],
    }


LLAMA = Layout(
    name="llama",
    title="a Llama language model",
    markers=("model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight", "model.norm.weight"),
    # Qwen's models have the same names: Llama has no norms of queries and keys, and no biases
    absent=("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight"),
    prefixes=("", "language_model.", "text_encoders.llama.transformer."),
    # its head over the vocabulary
    ignored=(r"lm_head\.weight", r"model\.layers\.\d+\..*rotary_emb\.inv_freq"),
    rules=(Rule(r"model\.(?P<name>(?:embed_tokens|layers|norm)\..*weight)", ("{name}",)),),
)
"""``llava_llama3_fp16.safetensors`` and its 8-bit forms, and LLaVA's own, whose eyes captions don't ask."""


def measure_llama(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of Llama."""
    vocabulary, width = shapes["embed_tokens.weight"]
    head = config["head_dim"]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": count_modules(shapes, "layers"),
        "num_attention_heads": shapes["layers.0.self_attn.q_proj.weight"][0] // head,
        "num_key_value_heads": shapes["layers.0.self_attn.k_proj.weight"][0] // head,
    }
