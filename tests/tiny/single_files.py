"""Makes tiny base models as single files, as users of ComfyUI have them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from diffusers import UNet2DConditionModel

from tests.tiny import originals


def words(tokenizer: Path) -> int:
    from transformers import AutoTokenizer

    return len(AutoTokenizer.from_pretrained(tokenizer))


def flux_files(tiny_flux: Path, where: Path) -> dict[str, str]:
    """The settings of [model] that give a tiny FLUX as ComfyUI's users have it: four files, two tokenizer folders."""
    clip, t5 = (originals.clip(words(tiny_flux / "tokenizer")), originals.t5(words(tiny_flux / "tokenizer_2")))
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(tiny_flux / name, where / name)
    transformer = originals.bfl(originals.flux_transformer(latent=4).state_dict())
    files = {
        "base_model": originals.write(where / "flux1-dev.safetensors", transformer),
        "vae": originals.write(where / "ae.safetensors", originals.ldm_vae(originals.autoencoder(4).state_dict())),
        "text_encoder": originals.write(where / "clip_l.safetensors", originals.hf_clip(clip.state_dict())),
        "text_encoder_2": originals.write(
            where / "t5xxl_fp8_e4m3fn_scaled.safetensors", originals.in_fp8(originals.t5_file(t5.state_dict()))
        ),
        "tokenizer": where / "tokenizer",
        "tokenizer_2": where / "tokenizer_2",
    }
    return {name: str(path) for name, path in files.items()}


def tiny_unet(kind: str) -> Any:
    """A UNet of two layers a level with 64 channels a head, as the original layouts know them."""
    common = {"layers_per_block": 2, "norm_num_groups": 32, "sample_size": 16}
    if kind == "sd15":
        return originals.tiny(
            lambda: UNet2DConditionModel(
                block_out_channels=(32, 32, 64, 64),
                down_block_types=(*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"),
                up_block_types=("UpBlock2D", *["CrossAttnUpBlock2D"] * 3),
                attention_head_dim=8,
                cross_attention_dim=64,
                **common,
            )
        )
    return originals.tiny(
        lambda: UNet2DConditionModel(
            block_out_channels=(32, 64, 128),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            transformer_layers_per_block=(1, 2, 2),
            attention_head_dim=(1, 1, 2),
            cross_attention_dim=64 + 128,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=128 + 6 * 256,
            **common,
        )
    )
