"""Writes the key-and-shape lists of published files, by building the models with their makers' own code.

``python tests/models/golden/make_golden.py CLONES`` where CLONES holds clones of black-forest-labs/flux,
CompVis/stable-diffusion, Stability-AI/generative-models, mlfoundations/open_clip and Stability-AI/sd3.5, called flux,
sd, sgm, oc and sd3.
Nothing of ours is imported: the lists are independent of what they test. Models are made on torch's meta device.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from collections import defaultdict
from pathlib import Path

import torch

HERE = Path(__file__).parent
Shapes = dict[str, list[int]]


def shapes_of(model: torch.nn.Module, prefix: str = "") -> Shapes:
    return {prefix + name: list(value.shape) for name, value in model.state_dict().items()}


def flux(clones: Path) -> dict[str, Shapes]:
    sys.path.insert(0, str(clones / "flux" / "src"))
    package = types.ModuleType("flux")
    package.__path__ = [str(clones / "flux" / "src" / "flux")]
    sys.modules["flux"] = package
    model, auto = importlib.import_module("flux.model"), importlib.import_module("flux.modules.autoencoder")
    # flux/util.py, configs["flux-dev"] and ["flux-schnell"]; Kontext has dev's
    common = {
        "in_channels": 64,
        "out_channels": 64,
        "vec_in_dim": 768,
        "context_in_dim": 4096,
        "hidden_size": 3072,
        "mlp_ratio": 4.0,
    }
    common |= {
        "num_heads": 24,
        "depth": 19,
        "depth_single_blocks": 38,
        "axes_dim": [16, 56, 56],
        "theta": 10_000,
        "qkv_bias": True,
    }
    vae = auto.AutoEncoderParams(
        resolution=256,
        in_channels=3,
        ch=128,
        out_ch=3,
        ch_mult=[1, 2, 4, 4],
        num_res_blocks=2,
        z_channels=16,
        scale_factor=0.3611,
        shift_factor=0.1159,
    )
    return {
        "flux1-dev": shapes_of(model.Flux(model.FluxParams(**common, guidance_embed=True))),
        "flux1-schnell": shapes_of(model.Flux(model.FluxParams(**common, guidance_embed=False))),
        "ae": shapes_of(auto.AutoEncoder(vae)),
    }


def text_encoders() -> dict[str, Shapes]:
    """clip_l and t5xxl as transformers makes them from the configs of clip-vit-large-patch14 and t5-v1_1-xxl."""
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    clip = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=768, intermediate_size=3072, projection_dim=768, num_hidden_layers=12, num_attention_heads=12
        )
    )
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=32128,
            d_model=4096,
            d_kv=64,
            d_ff=10240,
            num_layers=24,
            num_heads=64,
            feed_forward_proj="gated-gelu",
        )
    )
    # published before transformers dropped the inner prefix
    clip_l = {f"text_model.{name.removeprefix('text_model.')}": shape for name, shape in shapes_of(clip).items()}
    return {"clip_l": clip_l, "t5xxl": {n: s for n, s in shapes_of(t5).items() if n != "encoder.embed_tokens.weight"}}


def ldm_vae(clones: Path) -> Shapes:
    """The autoencoder of v1-inference.yaml; sd_xl_base.yaml has the same."""
    model = importlib.import_module("ldm.modules.diffusionmodules.model")
    config = {
        "double_z": True,
        "z_channels": 4,
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 128,
        "ch_mult": [1, 2, 4, 4],
    }
    config |= {"num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0}
    shapes = shapes_of(model.Encoder(**config), "encoder.") | shapes_of(model.Decoder(**config), "decoder.")
    # ldm/models/autoencoder.py, embed_dim 4
    quant = {"quant_conv": torch.nn.Conv2d(8, 8, 1), "post_quant_conv": torch.nn.Conv2d(4, 4, 1)}
    for name, layer in quant.items():
        shapes |= shapes_of(layer, f"{name}.")
    return {f"first_stage_model.{name}": shape for name, shape in shapes.items()}


def stable_diffusion(clones: Path, clip_l: Shapes) -> dict[str, Shapes]:
    for name in ("omegaconf", "torchvision", "torchvision.ops"):
        _stand_in(name)
    _stand_in("torchvision.ops.misc", FrozenBatchNorm2d=None)
    _stand_in("omegaconf.listconfig", ListConfig=list)
    sys.path[:0] = [str(clones / "sd"), str(clones / "sgm"), str(clones / "oc" / "src")]
    for name, folder in {"sgm": clones / "sgm/sgm", "sgm.modules": clones / "sgm/sgm/modules"}.items():
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
    ldm = importlib.import_module("ldm.modules.diffusionmodules.openaimodel")
    sgm = importlib.import_module("sgm.modules.diffusionmodules.openaimodel")
    old = ldm.UNetModel(
        image_size=32,
        in_channels=4,
        out_channels=4,
        model_channels=320,
        attention_resolutions=[4, 2, 1],
        num_res_blocks=2,
        channel_mult=[1, 2, 4, 4],
        num_heads=8,
        use_spatial_transformer=True,
        transformer_depth=1,
        context_dim=768,
        legacy=False,
    )
    new = sgm.UNetModel(
        adm_in_channels=2816,
        num_classes="sequential",
        in_channels=4,
        out_channels=4,
        model_channels=320,
        attention_resolutions=[4, 2],
        num_res_blocks=2,
        channel_mult=[1, 2, 4],
        num_head_channels=64,
        use_linear_in_transformer=True,
        transformer_depth=[1, 2, 10],
        context_dim=2048,
    )
    package = types.ModuleType("open_clip")
    package.__path__ = [str(clones / "oc/src/open_clip")]
    sys.modules["open_clip"] = package
    text = importlib.import_module("open_clip.transformer").TextTransformer(
        width=1280, heads=20, layers=32, output_dim=1280
    )
    # sgm's FrozenOpenCLIPEmbedder2 holds a whole open_clip model without its vision part
    big = shapes_of(text, "conditioner.embedders.1.model.") | {"conditioner.embedders.1.model.logit_scale": []}
    positions = {"text_model.embeddings.position_ids": [1, 77]}
    vae = ldm_vae(clones)
    sd15 = shapes_of(old, "model.diffusion_model.") | vae
    sd15 |= {f"cond_stage_model.transformer.{name}": shape for name, shape in (clip_l | positions).items()}
    sdxl = shapes_of(new, "model.diffusion_model.") | vae | big
    sdxl |= {f"conditioner.embedders.0.transformer.{name}": shape for name, shape in (clip_l | positions).items()}
    # what the DDPM of CompVis registers beside its models (ldm/models/diffusion/ddpm.py)
    schedule = ("betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod", "log_one_minus_alphas_cumprod")
    sd15 |= {name: [1000] for name in schedule}
    return {"v1-5-pruned-emaonly": sd15, "sd_xl_base_1.0": sdxl}


def stable_diffusion_3(clones: Path) -> dict[str, Shapes]:
    """Transformers and VAE of the three checkpoints, as sd3_impls.py finds them by their depth; and clip_g."""
    sys.path.insert(0, str(clones / "sd3"))
    _stand_in("dit_embedder", ControlNetEmbedder=None)
    transformer, parts = importlib.import_module("mmditx").MMDiTX, importlib.import_module("sd3_impls")
    text = {"target": "torch.nn.Linear", "params": {"in_features": 4096}}

    def checkpoint(depth: int, positions: int, qk_norm: str | None, dual: int) -> Shapes:
        text["params"]["out_features"] = 64 * depth
        model = transformer(
            input_size=None,
            pos_embed_max_size=positions,
            patch_size=2,
            in_channels=16,
            depth=depth,
            num_patches=positions**2,
            adm_in_channels=2048,
            context_embedder_config=text,
            qk_norm=qk_norm,
            x_block_self_attn_layers=list(range(dual)),
        )
        vae = shapes_of(parts.VAEEncoder(), "encoder.") | shapes_of(parts.VAEDecoder(), "decoder.")
        return shapes_of(model, "model.diffusion_model.") | {f"first_stage_model.{n}": s for n, s in vae.items()}

    config = {"hidden_act": "gelu", "hidden_size": 1280, "intermediate_size": 5120}
    config |= {"num_attention_heads": 20, "num_hidden_layers": 32}
    with torch.no_grad():
        clip_g = importlib.import_module("other_impls").CLIPTextModel(config, torch.float32, "meta")
    return {
        "sd3_medium": checkpoint(24, 192, None, 0),
        "sd3.5_medium": checkpoint(24, 384, "rms", 13),
        "sd3.5_large": checkpoint(38, 192, "rms", 0),
        "clip_g": shapes_of(clip_g),
    }


def compressed(shapes: Shapes) -> dict[str, list[int]]:
    """Names that differ in one number, with one shape and consecutive numbers, as one: ``double_blocks.{0-18}.x``."""
    return min(
        (_joined(shapes, at) for at in (r"(?<=\.)\d+(?=\.)", r"(?<=transformer_blocks\.)\d+|(?<=resblocks\.)\d+")),
        key=len,
    )


def _joined(shapes: Shapes, at: str) -> dict[str, list[int]]:
    groups: dict[tuple[str, str, tuple[int, ...]], list[int]] = defaultdict(list)
    out: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        match = re.search(at, name)
        if match is None:
            out[name] = shape
        else:
            groups[name[: match.start()], name[match.end() :], tuple(shape)].append(int(match[0]))
    for (before, after, shape), numbers in groups.items():
        for first, last in _runs(sorted(numbers)):
            out[f"{before}{{{first}-{last}}}{after}"] = list(shape)
    return dict(sorted(out.items()))


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _stand_in(name: str, **members: object) -> None:
    """A module that is only imported, or only used in forwards."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules.setdefault(name, module)


def main(clones: Path) -> None:
    _stand_in("einops", rearrange=None, repeat=None)
    with torch.device("meta"):
        lists = flux(clones) | text_encoders()
        lists |= stable_diffusion(clones, lists["clip_l"])
        lists |= stable_diffusion_3(clones)
    write(lists)


def write(lists: dict[str, Shapes]) -> None:
    """The lists as files beside this one."""
    for name, shapes in lists.items():
        text = json.dumps({"tensors": compressed(shapes)}, separators=(",", ":")).replace('],"', '],\n"')
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
