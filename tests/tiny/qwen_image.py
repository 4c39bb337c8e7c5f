"""Random tiny Qwen-Image and Qwen-Image-Edit pipelines in the real diffusers layout, made locally in about a second.

Real classes, real file names, a tokenizer made from nothing that cuts the pipelines' templates into the 34 and 64
tokens that the real one does. Dimensions are small, structure is Qwen-Image's (VAE of four levels, stretched dynamic
shifting).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from backend.bench.rehearsal.tokenizers import qwen_tokenizer
from backend.families.qwen_image.edit_facts import ASKED as EDIT_ASKED
from backend.families.qwen_image.edit_facts import LABEL
from backend.families.qwen_image.facts import TEMPLATE
from tests.tiny.anima import _tiny, autoencoder

TEXT_WIDTH, HEADS, HEAD_DIM, LATENT_CHANNELS = 32, 2, 16, 4


def make_tiny_denoiser(layers: int = 3, seed: int = 0, **config: Any):
    """The fixture's transformer alone, random, fp32: QwenImageTransformer2DModel of width 32."""
    return _tiny(lambda: denoiser(layers, **config), seed)


def make_tiny_qwen_image(path: Path, seed: int = 0) -> Path:
    """Write the pipeline to the folder `path` (made if missing) and return it."""
    _tiny(lambda: _write(Path(path)), seed)
    return Path(path)


def make_tiny_qwen_edit(plain: Path, path: Path) -> Path:
    """The pipeline in `plain` as a Qwen-Image-Edit in `path`: the same parts, and what pictures are read by."""
    shutil.copytree(plain, path, dirs_exist_ok=True)
    index = json.loads((path / "model_index.json").read_text())
    index |= {"_class_name": "QwenImageEditPipeline", "processor": ["transformers", "Qwen2VLProcessor"]}
    (path / "model_index.json").write_text(json.dumps(index))
    shutil.copytree(plain / "tokenizer", path / "processor")
    # figures of Qwen/Qwen-Image-Edit
    config = {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen2VLProcessor"}
    config |= {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
    config |= {"size": {"longest_edge": 12845056, "shortest_edge": 3136}, "resample": 3}
    (path / "processor" / "preprocessor_config.json").write_text(json.dumps(config))
    return path


def make_tiny_qwen_edit_plus(edit: Path, path: Path) -> Path:
    """The pipeline in `edit` as a Qwen-Image-Edit-2511 in `path`: the same parts, and two places say so."""
    shutil.copytree(edit, path, dirs_exist_ok=True)
    configs = {"model_index.json": {"_class_name": "QwenImageEditPlusPipeline"}}
    configs |= {"transformer/config.json": {"zero_cond_t": True}}
    for name, values in configs.items():
        (path / name).write_text(json.dumps(json.loads((path / name).read_text()) | values))
    return path


def denoiser(layers: int = 3, latent: int = LATENT_CHANNELS, text: int = TEXT_WIDTH, **config: Any):
    """The transformer, as its constructor leaves it."""
    from diffusers import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=latent * 4,
        out_channels=latent,
        num_layers=layers,
        attention_head_dim=HEAD_DIM,
        num_attention_heads=HEADS,
        joint_attention_dim=text,
        axes_dims_rope=(4, 6, 6),
        **config,
    )


def text_encoder(vocabulary: int, width: int = TEXT_WIDTH, heads: int = 2, eyes: int = 4):
    """Qwen2.5-VL: 2 layers of language, 1 of vision with so many heads (`eyes`) of 8."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    half = width // heads // 2
    rope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [half // 4, half // 4, half - half // 2]}
    language = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "rope_parameters": rope,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 1,
        "hidden_size": 8 * eyes,
        "intermediate_size": 32,
        "num_heads": eyes,
        "out_hidden_size": width,
        "fullatt_block_indexes": [0],
    }
    # the tokenizer's last but one
    config = Qwen2_5_VLConfig(
        text_config=language, vision_config=vision, tie_word_embeddings=False, image_token_id=vocabulary - 2
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def tokenizer(folder: Path) -> int:
    """Byte-level BPE as Qwen has it, with a token for each word of the template; returns the vocabulary's size."""
    return qwen_tokenizer(folder, TEMPLATE + EDIT_ASKED + LABEL, (" user", " (", "),", "'s"))


def scheduler() -> Any:
    """The scheduler with Qwen-Image's published figures."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=1.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
        time_shift_type="exponential",
    )


def _write(path: Path) -> None:
    from diffusers import QwenImagePipeline
    from transformers import Qwen2Tokenizer

    words = tokenizer(path / "tokenizer")
    QwenImagePipeline(
        scheduler=scheduler(),
        vae=autoencoder(),
        text_encoder=text_encoder(words),
        tokenizer=Qwen2Tokenizer.from_pretrained(path / "tokenizer"),
        transformer=denoiser(),
    ).save_pretrained(path)
