"""Tiny random models written as their makers publish them: single files in the projects' own layouts.

The way back from diffusers' names is written here by itself, from the projects' sources, and shares nothing with the
rules of `backend.families.files.layouts`; that it is right is shown by diffusers' own converters (test_layouts.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def tiny(make: Callable[[], Any], seed: int = 0) -> nn.Module:
    """A random model whose norms are random too, so that a mix-up of any two tensors shows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return model.eval().requires_grad_(False)


def flux_transformer(guidance: bool = True, text: int = 32, pooled: int = 64, latent: int = 16) -> nn.Module:
    """One head of FLUX's own 128 channels; 2 double and 3 single blocks."""
    from diffusers import FluxTransformer2DModel

    return tiny(
        lambda: FluxTransformer2DModel(
            in_channels=latent * 4,
            num_layers=2,
            num_single_layers=3,
            attention_head_dim=128,
            num_attention_heads=1,
            joint_attention_dim=text,
            pooled_projection_dim=pooled,
            guidance_embeds=guidance,
        )
    )


def autoencoder(latent: int = 16, quant: bool = False, levels: int = 4, **how: Any) -> nn.Module:
    """Levels of 32 channels, as few as its norms allow; `how` as the families' configs have it."""
    from diffusers import AutoencoderKL

    return tiny(
        lambda: AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * levels,
            up_block_types=("UpDecoderBlock2D",) * levels,
            block_out_channels=(32, 32, 64, 64)[:levels],
            layers_per_block=2,
            latent_channels=latent,
            use_quant_conv=quant,
            use_post_quant_conv=quant,
            **how,
        )
    )


def clip(vocabulary: int, cls_name: str = "CLIPTextModel", width: int = 64, act: str = "quick_gelu") -> nn.Module:
    """Two layers of one 64 wide head."""
    import transformers

    config = transformers.CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=width // 64,
        max_position_embeddings=77,
        hidden_act=act,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=1,
    )
    return tiny(lambda: getattr(transformers, cls_name)(config))


def t5(vocabulary: int, width: int = 32) -> nn.Module:
    """Two layers of T5's encoder, gated as the published one."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=64,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return tiny(lambda: T5EncoderModel(config))


def bfl(state: Mapping[str, Tensor]) -> State:
    """FLUX's transformer as black-forest-labs/flux names it."""
    out: State = {}
    pairs = {
        "x_embedder": "img_in",
        "context_embedder": "txt_in",
        "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
        "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
        "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
        "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
        "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
        "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
        "proj_out": "final_layer.linear",
    }
    for leaf in ("weight", "bias"):
        for ours, theirs in pairs.items():
            if f"{ours}.{leaf}" in state:
                out[f"{theirs}.{leaf}"] = state[f"{ours}.{leaf}"]
        scale, shift = state[f"norm_out.linear.{leaf}"].chunk(2)
        out[f"final_layer.adaLN_modulation.1.{leaf}"] = torch.cat([shift, scale])

    def joined(base: str, names: tuple[str, ...], leaf: str) -> Tensor:
        return torch.cat([state[f"{base}.{name}.{leaf}"] for name in names])

    for n in _numbers(state, "transformer_blocks"):
        ours, theirs = f"transformer_blocks.{n}", f"double_blocks.{n}"
        for leaf in ("weight", "bias"):
            out[f"{theirs}.img_mod.lin.{leaf}"] = state[f"{ours}.norm1.linear.{leaf}"]
            out[f"{theirs}.txt_mod.lin.{leaf}"] = state[f"{ours}.norm1_context.linear.{leaf}"]
            out[f"{theirs}.img_attn.qkv.{leaf}"] = joined(f"{ours}.attn", ("to_q", "to_k", "to_v"), leaf)
            out[f"{theirs}.txt_attn.qkv.{leaf}"] = joined(
                f"{ours}.attn", ("add_q_proj", "add_k_proj", "add_v_proj"), leaf
            )
            out[f"{theirs}.img_attn.proj.{leaf}"] = state[f"{ours}.attn.to_out.0.{leaf}"]
            out[f"{theirs}.txt_attn.proj.{leaf}"] = state[f"{ours}.attn.to_add_out.{leaf}"]
            for mlp, ff in (("img_mlp", "ff"), ("txt_mlp", "ff_context")):
                out[f"{theirs}.{mlp}.0.{leaf}"] = state[f"{ours}.{ff}.net.0.proj.{leaf}"]
                out[f"{theirs}.{mlp}.2.{leaf}"] = state[f"{ours}.{ff}.net.2.{leaf}"]
        for stream, added in (("img", ""), ("txt", "added_")):
            out[f"{theirs}.{stream}_attn.norm.query_norm.scale"] = state[f"{ours}.attn.norm_{added}q.weight"]
            out[f"{theirs}.{stream}_attn.norm.key_norm.scale"] = state[f"{ours}.attn.norm_{added}k.weight"]
    for n in _numbers(state, "single_transformer_blocks"):
        ours, theirs = f"single_transformer_blocks.{n}", f"single_blocks.{n}"
        for leaf in ("weight", "bias"):
            out[f"{theirs}.linear1.{leaf}"] = joined(ours, ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), leaf)
            out[f"{theirs}.linear2.{leaf}"] = state[f"{ours}.proj_out.{leaf}"]
            out[f"{theirs}.modulation.lin.{leaf}"] = state[f"{ours}.norm.linear.{leaf}"]
        out[f"{theirs}.norm.query_norm.scale"] = state[f"{ours}.attn.norm_q.weight"]
        out[f"{theirs}.norm.key_norm.scale"] = state[f"{ours}.attn.norm_k.weight"]
    return out


def mmdit(state: Mapping[str, Tensor]) -> State:
    """SD3's transformer as Stability-AI/sd3.5 names it."""
    out: State = {"pos_embed": state["pos_embed.pos_embed"]}
    pairs = {
        "pos_embed.proj": "x_embedder.proj",
        "context_embedder": "context_embedder",
        "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
        "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
        "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
        "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
        "proj_out": "final_layer.linear",
    }
    turned = {"norm_out.linear": "final_layer.adaLN_modulation.1"}
    joined: dict[tuple[str, ...], str] = {}
    blocks = _numbers(state, "transformer_blocks")
    for n in blocks:
        ours, x, context = f"transformer_blocks.{n}", f"joint_blocks.{n}.x_block", f"joint_blocks.{n}.context_block"
        pairs[f"{ours}.norm1.linear"] = f"{x}.adaLN_modulation.1"
        # the last block's text is only read: shift and scale alone, in the other order
        (turned if n == blocks[-1] else pairs)[f"{ours}.norm1_context.linear"] = f"{context}.adaLN_modulation.1"
        for attn in ("attn", "attn2"):
            joined[tuple(f"{ours}.{attn}.to_{name}" for name in "qkv")] = f"{x}.{attn}.qkv"
            pairs |= {f"{ours}.{attn}.to_out.0": f"{x}.{attn}.proj"}
            pairs |= {f"{ours}.{attn}.norm_{name}": f"{x}.{attn}.ln_{name}" for name in "qk"}
        joined[tuple(f"{ours}.attn.add_{name}_proj" for name in "qkv")] = f"{context}.attn.qkv"
        pairs[f"{ours}.attn.to_add_out"] = f"{context}.attn.proj"
        pairs |= {f"{ours}.attn.norm_added_{name}": f"{context}.attn.ln_{name}" for name in "qk"}
        for ff, side in (("ff", x), ("ff_context", context)):
            pairs |= {f"{ours}.{ff}.net.0.proj": f"{side}.mlp.fc1", f"{ours}.{ff}.net.2": f"{side}.mlp.fc2"}
    for leaf in ("weight", "bias"):
        out |= {f"{new}.{leaf}": state[f"{old}.{leaf}"] for old, new in pairs.items() if f"{old}.{leaf}" in state}
        for old, new in turned.items():
            scale, shift = state[f"{old}.{leaf}"].chunk(2)
            out[f"{new}.{leaf}"] = torch.cat([shift, scale])
        for parts, new in joined.items():
            if f"{parts[0]}.{leaf}" in state:
                out[f"{new}.{leaf}"] = torch.cat([state[f"{part}.{leaf}"] for part in parts])
    return out


def ldm_vae(state: Mapping[str, Tensor]) -> State:
    """An autoencoder as CompVis/latent-diffusion names it."""
    levels = len(_numbers(state, "decoder.up_blocks"))
    out: State = {}
    for name, value in state.items():
        new = name.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        new = re.sub(r"down_blocks\.(\d+)\.resnets\.(\d+)", r"down.\1.block.\2", new)
        new = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", new)
        new = re.sub(r"up_blocks\.(\d+)\.resnets\.(\d+)", lambda m: f"up.{levels - 1 - int(m[1])}.block.{m[2]}", new)
        new = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda m: f"up.{levels - 1 - int(m[1])}.upsample", new)
        new = new.replace("mid_block.resnets.0", "mid.block_1").replace("mid_block.resnets.1", "mid.block_2")
        if "mid_block.attentions.0" in new:
            new = new.replace("mid_block.attentions.0", "mid.attn_1").replace("to_out.0", "proj_out")
            new = new.replace("group_norm", "norm")
            new = re.sub(r"to_([qkv])", r"\1", new)
            if value.ndim == 2:
                value = value[:, :, None, None]
        out[new] = value
    return out


def ldm_unet(state: Mapping[str, Tensor]) -> State:
    """A UNet of two residual layers a level, as CompVis/latent-diffusion names it."""
    resnet = {
        "norm1": "in_layers.0",
        "conv1": "in_layers.2",
        "time_emb_proj": "emb_layers.1",
        "norm2": "out_layers.0",
        "conv2": "out_layers.3",
        "conv_shortcut": "skip_connection",
    }
    plain = {
        "conv_in": "input_blocks.0.0",
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "add_embedding.linear_1": "label_emb.0.0",
        "add_embedding.linear_2": "label_emb.0.2",
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
    }
    out: State = {}
    for name, value in state.items():
        stem, _, leaf = name.rpartition(".")
        new = plain.get(stem)
        if new is None:
            side, *rest = name.split(".", 1)[0], name.split(".", 1)[1]
            new = _in_block(side, rest[0].rsplit(".", 1)[0], state, resnet)
        out[f"{new}.{leaf}"] = value
    return out


def _in_block(side: str, rest: str, state: Mapping[str, Tensor], resnet: Mapping[str, str]) -> str:
    if side == "mid_block":
        kind, number, inner = rest.split(".", 2)
        if kind == "resnets":
            return f"middle_block.{2 * int(number)}.{resnet[inner]}"
        return f"middle_block.1.{inner}"
    level, kind, number, inner = rest.split(".", 3)
    down = side == "down_blocks"
    if kind in ("downsamplers", "upsamplers"):
        if down:
            return f"input_blocks.{3 * int(level) + 3}.0.op"
        attends = any(name.startswith(f"up_blocks.{level}.attentions.") for name in state)
        return f"output_blocks.{3 * int(level) + 2}.{2 if attends else 1}.conv"
    block = (
        f"input_blocks.{3 * int(level) + int(number) + 1}" if down else f"output_blocks.{3 * int(level) + int(number)}"
    )
    return f"{block}.0.{resnet[inner]}" if kind == "resnets" else f"{block}.1.{inner}"


def open_clip(state: Mapping[str, Tensor]) -> State:
    """A text encoder with its projection as mlfoundations/open_clip names it; `state` as transformers has it."""
    state = {name.removeprefix("text_model."): value for name, value in state.items()}
    out = {
        "positional_embedding": state["embeddings.position_embedding.weight"],
        "token_embedding.weight": state["embeddings.token_embedding.weight"],
        "text_projection": state["text_projection.weight"].T.contiguous(),
        "logit_scale": torch.tensor(4.6),
    }
    for leaf in ("weight", "bias"):
        out[f"ln_final.{leaf}"] = state[f"final_layer_norm.{leaf}"]
        for n in _numbers(state, "encoder.layers"):
            ours, theirs = f"encoder.layers.{n}", f"transformer.resblocks.{n}"
            out[f"{theirs}.attn.in_proj_{leaf}"] = torch.cat(
                [state[f"{ours}.self_attn.{name}_proj.{leaf}"] for name in "qkv"]
            )
            out[f"{theirs}.attn.out_proj.{leaf}"] = state[f"{ours}.self_attn.out_proj.{leaf}"]
            out[f"{theirs}.ln_1.{leaf}"] = state[f"{ours}.layer_norm1.{leaf}"]
            out[f"{theirs}.ln_2.{leaf}"] = state[f"{ours}.layer_norm2.{leaf}"]
            out[f"{theirs}.mlp.c_fc.{leaf}"] = state[f"{ours}.mlp.fc1.{leaf}"]
            out[f"{theirs}.mlp.c_proj.{leaf}"] = state[f"{ours}.mlp.fc2.{leaf}"]
    return out


def hf_clip(state: Mapping[str, Tensor]) -> State:
    """A text encoder as published files have it: behind ``text_model.``, whatever transformers calls it now."""
    return {
        name if name.startswith(("text_model.", "text_projection")) else f"text_model.{name}": value
        for name, value in state.items()
    }


def t5_file(state: Mapping[str, Tensor]) -> State:
    """T5's encoder with one copy of its embedding."""
    return {name: value for name, value in state.items() if name != "encoder.embed_tokens.weight"}


def behind(prefix: str, state: Mapping[str, Tensor]) -> State:
    """The same names behind `prefix`."""
    return {prefix + name: value for name, value in state.items()}


def in_fp8(state: Mapping[str, Tensor], ending: str = "scale_weight", marker: bool = True) -> State:
    """Matrices as float8 with one factor each, as ComfyUI's scaled fp8 files hold them."""
    out: State = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)} if marker else {}
    for name, value in state.items():
        if value.ndim == 2 and name.endswith(".weight"):
            factor = value.abs().max() / 448
            out[name] = (value / factor).to(torch.float8_e4m3fn)
            out[f"{name.removesuffix('.weight')}.{ending}"] = factor.float()
        else:
            out[name] = value
    return out


def write(path: Path, *states: Mapping[str, Tensor]) -> Path:
    """All of `states` in one safetensors file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous().clone() for state in states for name, value in state.items()}
    safetensors.torch.save_file(tensors, path)
    return path


def _numbers(state: Mapping[str, Tensor], before: str) -> list[int]:
    pattern = re.compile(re.escape(before) + r"\.(\d+)\.")
    return sorted({int(match[1]) for name in state if (match := pattern.match(name))})


def wan(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A VAE as Wan-Video/Wan2.1 names it."""
    inner = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6"}
    out = {}
    for name, value in state.items():
        new = name.replace("post_quant_conv", "conv2").replace("quant_conv", "conv1")
        new = new.replace("coder.conv_in", "coder.conv1").replace("coder.norm_out", "coder.head.0")
        new = new.replace("coder.conv_out", "coder.head.2").replace("encoder.down_blocks", "encoder.downsamples")
        new = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"middle.{2 * int(m[1])}", new)
        new = new.replace("mid_block.attentions.0", "middle.1").replace("conv_shortcut", "shortcut")
        new = re.sub(r"up_blocks\.(\d)\.resnets\.(\d)", lambda m: f"upsamples.{4 * int(m[1]) + int(m[2])}", new)
        new = re.sub(r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"upsamples.{4 * int(m[1]) + 3}", new)
        if re.search(r"samples\.\d+\.|middle\.[02]\.", new):
            new = re.sub(r"\.(norm1|conv1|norm2|conv2)\.", lambda m: f".{inner[m[1]]}.", new)
        out[new] = value
    return out
