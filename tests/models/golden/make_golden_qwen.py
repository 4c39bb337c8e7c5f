"""Writes the key-and-shape lists of Qwen-Image's and Anima's published files.

``python -m tests.models.golden.make_golden_qwen``. Their makers published them for diffusers and transformers, whose
classes are built here with the published configs on torch's meta device; names of single files that differ come from
the tests' own renaming, not from ours. ComfyUI's classes of both transformers (comfy/ldm/cosmos/predict2.py, comfy/ldm/
anima/model.py and comfy/ldm/qwen_image/model.py), which load the files as they are, have the same names and sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from diffusers import (
    AnimaTextConditioner,
    AutoencoderKLQwenImage,
    CosmosTransformer3DModel,
    QwenImageTransformer2DModel,
)

from tests.models.golden.make_golden import Shapes, shapes_of, write
from tests.tiny.anima_pipeline import published
from tests.tiny.originals import wan

# Qwen/Qwen2.5-VL-7B-Instruct and Qwen/Qwen3-0.6B-Base, config.json
_VL_TEXT = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
_VL_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


def qwen_vl() -> Shapes:
    """qwen_2.5_vl_7b: names from before transformers moved the language model inside of the model."""
    config = transformers.Qwen2_5_VLConfig(text_config=_VL_TEXT, vision_config=_VL_VISION, tie_word_embeddings=False)
    shapes = shapes_of(transformers.Qwen2_5_VLForConditionalGeneration(config))
    moved = {"model.language_model.": "model.", "model.visual.": "visual."}
    for new, old in moved.items():
        shapes = {f"{old}{n.removeprefix(new)}" if n.startswith(new) else n: shape for n, shape in shapes.items()}
    return shapes


def anima() -> Shapes:
    """anima-base-v1.0: the transformer in Cosmos' names, with the conditioner."""
    transformer = CosmosTransformer3DModel(
        in_channels=16,
        num_attention_heads=16,
        attention_head_dim=128,
        num_layers=28,
        text_embed_dim=1024,
        adaln_lora_dim=256,
        extra_pos_embed_type=None,
        concat_padding_mask=True,
    )
    conditioner: dict[str, Any] = AnimaTextConditioner(
        source_dim=1024, target_dim=1024, model_dim=1024, num_layers=6, num_attention_heads=16, target_vocab_size=32128
    ).state_dict()
    return {n: list(value.shape) for n, value in published(transformer.state_dict(), conditioner, "net.").items()}


def main() -> None:
    with torch.device("meta"):
        lists = {
            "qwen_image": shapes_of(QwenImageTransformer2DModel()),
            "qwen_2.5_vl_7b": qwen_vl(),
            "qwen_image_vae": {n: list(v.shape) for n, v in wan(AutoencoderKLQwenImage().state_dict()).items()},
            "anima-base-v1.0": anima(),
            "qwen_3_06b_base": {
                f"model.{name}": shape
                for name, shape in shapes_of(transformers.Qwen3Model(transformers.Qwen3Config(**_QWEN3))).items()
            },
        }
    write(lists)


if __name__ == "__main__":
    main()
