"""A tiny HunyuanVideo as Tencent, ComfyUI and others publish it in single files, and the names of its LoRA files.

The way back from diffusers' names is written here by itself, from the projects' sources, and shares nothing with our
rules; that it is right is shown by diffusers' own converter (tests/models/hunyuan_video/test_files.py).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tests.tiny import hunyuan_video, originals
from tests.tiny.anima import _tiny
from tests.tiny.comfy_maps import published
from tests.tiny.single_files import words

State = dict[str, Tensor]

_TENCENT = (
    ("single_transformer_blocks", "single_blocks"),
    ("context_embedder.token_refiner.refiner_blocks", "txt_in.individual_token_refiner.blocks"),
    ("context_embedder.time_text_embed.timestep_embedder.linear_1", "txt_in.t_embedder.mlp.0"),
    ("context_embedder.time_text_embed.timestep_embedder.linear_2", "txt_in.t_embedder.mlp.2"),
    ("context_embedder.time_text_embed.text_embedder", "txt_in.c_embedder"),
    ("context_embedder.proj_in", "txt_in.input_embedder"),
    ("transformer_blocks", "double_blocks"),
    ("time_text_embed.timestep_embedder.linear_1", "time_in.mlp.0"),
    ("time_text_embed.timestep_embedder.linear_2", "time_in.mlp.2"),
    ("time_text_embed.guidance_embedder.linear_1", "guidance_in.mlp.0"),
    ("time_text_embed.guidance_embedder.linear_2", "guidance_in.mlp.2"),
    ("time_text_embed.text_embedder.linear_1", "vector_in.in_layer"),
    ("time_text_embed.text_embedder.linear_2", "vector_in.out_layer"),
    ("x_embedder.proj", "img_in.proj"),
    ("norm1_context.linear", "txt_mod.linear"),
    ("norm1.linear", "img_mod.linear"),
    ("attn.norm_added_", "txt_attn_"),
    ("attn.to_add_out", "txt_attn_proj"),
    ("ff_context.net.0.proj", "txt_mlp.fc1"),
    ("ff_context.net.2", "txt_mlp.fc2"),
)
_IN = {
    "double_blocks": (("attn.norm_", "img_attn_"), ("attn.to_out.0", "img_attn_proj"), ("ff.net.0.proj", "img_mlp.fc1"),
                      ("ff.net.2", "img_mlp.fc2")),
    "single_blocks": (("attn.norm_q", "q_norm"), ("attn.norm_k", "k_norm"), ("proj_out", "linear2"),
                      ("norm.linear", "modulation.linear")),
    "txt_in": (("attn.to_out.0", "self_attn_proj"), ("ff.net.0.proj", "mlp.fc1"), ("ff.net.2", "mlp.fc2"),
               ("norm_out.linear", "adaLN_modulation.1")),
}  # fmt: skip


def tencent(state: Mapping[str, Tensor]) -> State:
    """The transformer as Tencent-Hunyuan/HunyuanVideo names it."""
    out: State = {}
    for name, value in state.items():
        if re.search(r"(to_[kv]|add_[kv]_proj|single.*proj_mlp)\.(weight|bias)$", name):
            continue  # with its query
        new = _tencent_name(name)
        if name.startswith("norm_out.linear"):
            scale, shift = value.chunk(2)
            value = torch.cat([shift, scale])
        elif ".to_q." in name or ".add_q_proj." in name:
            rest = [name.replace("_q", f"_{other}") for other in "kv"]
            if name.startswith("single"):
                rest.append(name.replace("attn.to_q", "proj_mlp"))
            value = torch.cat([value, *(state[each] for each in rest)])
        out[new] = value
    return out


def _tencent_name(name: str) -> str:
    if name.startswith(("norm_out.linear", "proj_out")):
        moved = name.replace("norm_out.linear", "final_layer.adaLN_modulation.1")
        return moved.replace("proj_out", "final_layer.linear")
    for old, new in _TENCENT:
        name = name.replace(old, new)
    part = name.split(".")[0]
    for old, new in _IN.get(part, ()):
        name = name.replace(old, new)
    name = re.sub(r"(txt|img)_attn_([qk])\.", r"\1_attn_\2_norm.", name)
    name = name.replace("attn.add_q_proj", "txt_attn_qkv")
    fused = {"double_blocks": "img_attn_qkv", "txt_in": "self_attn_qkv", "single_blocks": "linear1"}
    return name.replace("attn.to_q", fused.get(part, ""))


def comfy(stored: Mapping[str, Tensor]) -> State:
    """Tencent's names as ComfyUI renames them when it loads a file, and saves it again."""
    out = {}
    for name, value in stored.items():
        new = re.sub(r"(txt_in\.t_embedder|time_in|guidance_in)\.mlp\.0\.", r"\1.in_layer.", name)
        new = re.sub(r"(txt_in\.t_embedder|time_in|guidance_in)\.mlp\.2\.", r"\1.out_layer.", new)
        new = new.replace("c_embedder.linear_1.", "c_embedder.in_layer.").replace(
            "c_embedder.linear_2.", "c_embedder.out_layer."
        )
        new = new.replace("_mod.linear.", "_mod.lin.").replace(".modulation.linear.", ".modulation.lin.")
        new = new.replace("_attn_qkv.", "_attn.qkv.").replace("_attn_proj.", "_attn.proj.")
        new = new.replace("mlp.fc1.", "mlp.0.").replace("mlp.fc2.", "mlp.2.")
        new = re.sub(r"(_attn_|\.)q_norm\.weight", lambda m: f"{m[1].rstrip('_.')}.norm.query_norm.scale", new)
        new = re.sub(r"(_attn_|\.)k_norm\.weight", lambda m: f"{m[1].rstrip('_.')}.norm.key_norm.scale", new)
        out[new] = value
    return out


def comfy_keys(state: Mapping[str, Tensor]) -> set[str]:
    """What ComfyUI's key map has for a HunyuanVideo with these tensors, by diffusers' names.

    Its own names behind both prefixes, and Tencent's with points behind ``transformer.`` and ``diffusion_model.``, as
    diffusion-pipe writes them.
    """
    own = tencent(state)
    old = [name.removesuffix(".weight") for name in own if name.endswith(".weight")]
    return published(comfy(own)) | {prefix + name for name in old for prefix in ("transformer.", "diffusion_model.")}


def ldm_vae(state: Mapping[str, Tensor]) -> State:
    """The VAE as ComfyUI names it: latent diffusion's names, and attention by convolutions."""
    out = {}
    for name, value in originals.ldm_vae(state).items():
        attends = "attn_1" in name and value.ndim == 4
        out[name] = value[..., None] if attends else value
    return out


def llama_file(state: Mapping[str, Tensor]) -> State:
    """Llama as published files have it: behind ``model.``, with a head over the vocabulary."""
    return {**originals.behind("model.", state), "lm_head.weight": state["embed_tokens.weight"]}


def files(base: Path, where: Path, *, comfy_names: bool = True) -> dict[str, str]:
    """The settings of [model] that give a tiny HunyuanVideo as ComfyUI's users have it: four files, two folders."""
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(base / name, where / name)
    net = tencent(hunyuan_video.make_tiny_denoiser(seed=1, text_embed_dim=128, pooled_projection_dim=64).state_dict())
    net = originals.behind("model.model.", comfy(net)) if comfy_names else net
    vae = _tiny(lambda: hunyuan_video.autoencoder(width=32, norms=32), 1).state_dict()
    llama = _tiny(lambda: hunyuan_video.llama(words(base / "tokenizer"), 128, 128), 1).state_dict()
    clip = originals.hf_clip(originals.clip(words(base / "tokenizer_2")).state_dict())
    made = {
        "base_model": originals.write(where / "hunyuan_video_t2v_720p_bf16.safetensors", net),
        "vae": originals.write(where / "hunyuan_video_vae_bf16.safetensors", ldm_vae(vae) if comfy_names else vae),
        "text_encoder": originals.write(
            where / "llava_llama3_fp8_scaled.safetensors", originals.in_fp8(llama_file(llama))
        ),
        "text_encoder_2": originals.write(where / "clip_l.safetensors", clip),
    }
    return {name: str(path) for name, path in made.items()} | {n: str(where / n) for n in ("tokenizer", "tokenizer_2")}
