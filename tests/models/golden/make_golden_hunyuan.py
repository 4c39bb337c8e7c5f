"""Writes the key-and-shape lists of HunyuanVideo's published files.

``python -m tests.models.golden.make_golden_hunyuan CLONE`` where CLONE is a clone of Tencent-Hunyuan/HunyuanVideo, by
whose own code the transformer and the VAE are made, on torch's meta device. LLaVA-Llama-3's language model is that of
transformers, at the published config, behind ``model.`` as in ComfyUI's file.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import torch
import transformers
from diffusers import HunyuanVideoFramepackTransformer3DModel

from tests.models.golden.make_golden import Shapes, shapes_of, write

_LLAMA = {
    "vocab_size": 128320,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
# hunyuan-video-t2v-720p/vae/config.json
_VAE = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlockCausal3D"] * 4,
    "up_block_types": ["UpDecoderBlockCausal3D"] * 4,
    "latent_channels": 16,
    "layers_per_block": 2,
}


def tencent(clone: Path) -> dict[str, Shapes]:
    """The transformer and the VAE by their makers' code, whose packages load more than is needed here."""
    for name in ("hyvideo", "hyvideo.modules", "hyvideo.vae"):
        package = types.ModuleType(name)
        package.__path__ = [str(clone / name.replace(".", "/"))]
        sys.modules[name] = package
    models = importlib.import_module("hyvideo.modules.models")
    vae = importlib.import_module("hyvideo.vae.autoencoder_kl_causal_3d")
    widths = types.SimpleNamespace(text_states_dim=4096, text_states_dim_2=768)
    options = {"in_channels": 16, "out_channels": 16, **models.HUNYUAN_VIDEO_CONFIG["HYVideo-T/2-cfgdistill"]}
    return {
        "hunyuan_video_t2v_720p": shapes_of(models.HYVideoDiffusionTransformer(widths, **options)),
        "hunyuan_video_vae": shapes_of(vae.AutoencoderKLCausal3D(**_VAE)),
    }


def framepack() -> dict[str, Shapes]:
    """FramePackI2V_HY and SigLIP, which are published for diffusers and transformers."""
    inputs = {"has_image_proj": True, "has_clean_x_embedder": True}
    net = HunyuanVideoFramepackTransformer3DModel(**inputs)
    # google/siglip-so400m-patch14-384
    eyes = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    siglip = transformers.SiglipVisionConfig(**eyes, image_size=384, patch_size=14)
    return {
        "framepack_i2v_hy": shapes_of(net),
        "sigclip_vision_patch14_384": shapes_of(transformers.SiglipVisionModel(siglip), "vision_model."),
    }


def main() -> None:
    with torch.device("meta"):
        lists = tencent(Path(sys.argv[1]))
        llama = transformers.LlamaModel(transformers.LlamaConfig(**_LLAMA))
        lists["llava_llama3"] = shapes_of(llama, "model.")
        lists |= framepack()
    write(lists)


if __name__ == "__main__":
    main()
