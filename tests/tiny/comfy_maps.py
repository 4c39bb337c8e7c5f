"""The names that ComfyUI's key map has for each family, written down from its rules and not from our saver.

Rules (ComfyUI ``comfy/lora.py`` and ``comfy/utils.py``): a weight ``<name>.weight`` of the model as it is published
is ``lora_unet_<name, points as underscores>``, and ``diffusion_model.<name>`` for peft's endings; FLUX and SD3 are
also ``transformer.<diffusers name>``; Qwen-Image keeps its names in both; a Stable Diffusion UNet is also
``lora_unet_<diffusers name, points as underscores>``.
"""

from __future__ import annotations

from collections.abc import Iterable


def published(names: Iterable[str]) -> set[str]:
    """Of the tensors of a published checkpoint, alone or behind ``model.diffusion_model.``."""
    own = [name.removeprefix("model.diffusion_model.") for name in names if name.endswith(".weight")]
    stems = [name.removesuffix(".weight") for name in own]
    return {f"lora_unet_{stem.replace('.', '_')}" for stem in stems} | {f"diffusion_model.{stem}" for stem in stems}


def flux(double: int, single: int) -> set[str]:
    """FLUX with so many blocks, by its published names and by diffusers'."""
    layers, ours = [], []
    for n in range(double):
        for side in ("img", "txt"):
            layers += [f"double_blocks.{n}.{side}_{part}" for part in ("mod.lin", "attn.qkv", "attn.proj")]
            layers += [f"double_blocks.{n}.{side}_mlp.{layer}" for layer in (0, 2)]
        names = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"]
        ours += [f"transformer_blocks.{n}.attn.{name}" for name in names]
        ours += [f"transformer_blocks.{n}.{name}.linear" for name in ("norm1", "norm1_context")]
        ours += [f"transformer_blocks.{n}.{f}.net.{layer}" for f in ("ff", "ff_context") for layer in ("0.proj", "2")]
    for n in range(single):
        layers += [f"single_blocks.{n}.{name}" for name in ("modulation.lin", "linear1", "linear2")]
        names = ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp", "proj_out", "norm.linear"]
        ours += [f"single_transformer_blocks.{n}.{name}" for name in names]
    layers += ["img_in", "txt_in", "final_layer.linear", "final_layer.adaLN_modulation.1"]
    for theirs, name in (("time", "timestep"), ("vector", "text"), ("guidance", "guidance")):
        layers += [f"{theirs}_in.{layer}" for layer in ("in_layer", "out_layer")]
        ours += [f"time_text_embed.{name}_embedder.linear_{layer}" for layer in (1, 2)]
    ours += ["x_embedder", "context_embedder", "proj_out", "norm_out.linear"]
    return published(f"{name}.weight" for name in layers) | {
        prefix + spelled
        for name in ours
        for prefix, spelled in (("transformer.", name), ("lycoris_", name.replace(".", "_")))
    }


def sd3(blocks: int, dual: int) -> set[str]:
    """SD3 by diffusers' names, the last of its blocks without what its text would go on to."""
    ours = [f"time_text_embed.{name}_embedder.linear_{layer}" for name in ("timestep", "text") for layer in (1, 2)]
    ours += ["context_embedder", "proj_out", "norm_out.linear"]
    for n in range(blocks):
        names = ["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "norm1.linear", "norm1_context.linear"]
        names += ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "ff.net.0.proj", "ff.net.2"]
        if n < blocks - 1:
            names += ["attn.to_add_out", "ff_context.net.0.proj", "ff_context.net.2"]
        if n < dual:
            names += [f"attn2.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")]
        ours += [f"transformer_blocks.{n}.{name}" for name in names]
    return {
        prefix + spelled
        for name in ours
        for prefix, spelled in (("transformer.", name), ("lycoris_", name.replace(".", "_")))
    }


def unet(attentions: dict[str, int], layers: dict[str, int], samplers: Iterable[str] = ()) -> set[str]:
    """A UNet. attentions: place ("mid_block.attentions.0") -> transformer blocks. layers: "mid_block" -> resnets.

    samplers: places of what changes the size ("down_blocks.0.downsamplers.0").
    """
    result = ["time_embedding.linear_1", "time_embedding.linear_2", "add_embedding.linear_1", "add_embedding.linear_2"]
    for place, depth in attentions.items():
        result += [f"{place}.proj_in", f"{place}.proj_out"]
        for n in range(depth):
            inside = f"{place}.transformer_blocks.{n}"
            result += [
                f"{inside}.{a}.{name}" for a in ("attn1", "attn2") for name in ("to_q", "to_k", "to_v", "to_out.0")
            ]
            result += [f"{inside}.ff.net.0.proj", f"{inside}.ff.net.2"]
    for place, count in layers.items():
        names = ("conv1", "conv2", "time_emb_proj", "conv_shortcut")
        result += [f"{place}.resnets.{n}.{name}" for n in range(count) for name in names]
    result += ["conv_in", "conv_out", *(f"{place}.conv" for place in samplers)]
    return {f"lora_unet_{name.replace('.', '_')}" for name in result}
