"""Writes the key-and-shape lists of Wan's published files.

``python -m tests.models.golden.make_golden_wan``. Its makers published them for diffusers and transformers, whose
classes are built here with the published sizes on torch's meta device; names of single files come from the tests' own
renaming, not from ours.
"""

from __future__ import annotations

import torch
import transformers
from diffusers import AutoencoderKLWan, WanTransformer3DModel

from tests.models.golden.make_golden import Shapes, write
from tests.tiny.originals import t5_file, wan
from tests.tiny.wan import published
from tests.tiny.wan_vae_names import in_makers_names

# Wan-AI/Wan2.1-T2V-14B-Diffusers, -1.3B-, Wan2.1-I2V-14B-480P-Diffusers and Wan2.2-TI2V-5B-Diffusers, config.json
_LARGE = {"num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824, "in_channels": 16, "out_channels": 16}
_SMALL = {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960, "in_channels": 16, "out_channels": 16}
_PICTURE = _LARGE | {"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120}
_5B = {"num_attention_heads": 24, "num_layers": 30, "ffn_dim": 14336, "in_channels": 48, "out_channels": 48}
_TEXT = {"text_dim": 4096}
_UMT5 = {"vocab_size": 256384, "d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24}
_EYES = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
_VAE22 = {"base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "patch_size": 2}
_VAE22 |= {"in_channels": 12, "out_channels": 12, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}


def shapes(state: dict[str, torch.Tensor]) -> Shapes:
    return {name: list(value.shape) for name, value in state.items()}


def transformer(config: dict[str, int]) -> Shapes:
    return shapes(published(WanTransformer3DModel(**config, **_TEXT).state_dict()))


def umt5() -> Shapes:
    config = transformers.UMT5Config(**_UMT5, feed_forward_proj="gated-gelu")
    return shapes(t5_file(transformers.UMT5EncoderModel(config).state_dict()))


def eyes() -> Shapes:
    config = transformers.CLIPVisionConfig(**_EYES, patch_size=14, image_size=224, projection_dim=1024)
    state = transformers.CLIPVisionModel(config).state_dict()
    shapes = {f"vision_model.{name}": list(value.shape) for name, value in state.items()}
    return shapes | {"visual_projection.weight": [1024, 1280]}


def main() -> None:
    with torch.device("meta"):
        lists = {
            "wan2.1_t2v_14B": transformer(_LARGE),
            "wan2.1_t2v_1.3B": transformer(_SMALL),
            "wan2.1_i2v_480p_14B": transformer(_PICTURE),
            "wan2.2_i2v_14B": transformer(_LARGE | {"in_channels": 36}),
            "wan2.2_ti2v_5B": transformer(_5B),
            "umt5_xxl": umt5(),
            "clip_vision_h": eyes(),
            "wan_2.1_vae": shapes(wan(AutoencoderKLWan().state_dict())),
            "wan2.2_vae": shapes(in_makers_names(AutoencoderKLWan(**_VAE22, scale_factor_spatial=16).state_dict())),
        }
    write(lists)


if __name__ == "__main__":
    main()
