"""Builds what runs of Qwen-Image are made of: settings, a prompt and the model in single files."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import torch

from tests.tiny import originals
from tests.tiny.anima import _tiny, autoencoder
from tests.tiny.qwen_image import denoiser, text_encoder
from tests.tiny.training import family_config

PROMPT = {"prompt": "a red circle", "negative_prompt": "a dog", "width": 64, "height": 96, "steps": 3, "seed": 5}
PROMPT |= {"true_cfg_scale": 4.0}
# of every kind; few, since each is traced
TRACED = ["attn.to_v", "attn.add_q_proj", "img_mlp.net.2", "txt_mlp.net.0.proj"]
settings = partial(family_config, "qwen_image")


def published_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The text encoder by the names of its first publication: the language model without a name of its own."""
    moved = {"model.language_model.": "model.", "model.visual.": "visual."}
    out = {}
    for name, value in state.items():
        start = next((old for old in moved if name.startswith(old)), "")
        out[moved.get(start, "") + name.removeprefix(start)] = value.clone()
    return out


def single_files(tokenizer: Path, where: Path, eyes: int = 4) -> dict[str, str]:
    """Transformer, text encoder and VAE in a file each, and the folder `tokenizer`; by [model] setting."""
    from tests.tiny.originals import wan
    from tests.tiny.single_files import words

    shutil.copytree(tokenizer, where / "tokenizer")
    net = _tiny(lambda: denoiser(latent=16, text=128), 0)
    text = _tiny(lambda: text_encoder(words(where / "tokenizer"), width=128, heads=1, eyes=eyes), 2)
    files = {
        "base_model": originals.write(
            where / "qwen_image_bf16.safetensors", originals.behind("model.diffusion_model.", net.state_dict())
        ),
        "text_encoder": originals.write(where / "qwen_2.5_vl_7b.safetensors", published_names(text.state_dict())),
        "vae": originals.write(
            where / "qwen_image_vae.safetensors", wan(_tiny(lambda: autoencoder(16), 3).state_dict())
        ),
        "tokenizer": where / "tokenizer",
    }
    return {name: str(path) for name, path in files.items()}
