"""A random tiny Anima in the layout of its published diffusers folder, made locally in about a second.

Real classes, real file names, tokenizers trained from nothing: what loads this loads a published folder too.
Dimensions are small, structure is Anima's (padding mask channel, no learned positions, VAE of four levels).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.bench.rehearsal.tokenizers import WORDS, byte_alphabet, t5_tokenizer

TEXT_WIDTH, HEADS, HEAD_DIM, LATENT_CHANNELS = 16, 2, 16, 4


def make_tiny_denoiser(layers: int = 3, seed: int = 0):
    """The fixture's transformer alone, random, fp32: CosmosTransformer3DModel of width 32."""
    return _tiny(lambda: _denoiser(layers), seed)


def make_tiny_anima(path: Path, seed: int = 0) -> Path:
    """Write the model to the folder `path` (made if missing) and return it."""
    _tiny(lambda: _write(Path(path)), seed)
    return Path(path)


def _tiny(make: Any, seed: int) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
        if made is not None:
            with torch.no_grad():
                for parameter in made.parameters():
                    # norms too, so that none is left out unseen
                    parameter.add_(torch.randn_like(parameter) * 0.05)
            made.requires_grad_(False)
        return made


def _denoiser(layers: int = 3, latent: int = LATENT_CHANNELS):
    from diffusers import CosmosTransformer3DModel

    return CosmosTransformer3DModel(
        in_channels=latent,
        out_channels=latent,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        num_layers=layers,
        mlp_ratio=2.0,
        text_embed_dim=TEXT_WIDTH,
        adaln_lora_dim=8,
        max_size=(128, 512, 512),
        patch_size=(1, 2, 2),
        rope_scale=(1.0, 4.0, 4.0),
        concat_padding_mask=True,
        extra_pos_embed_type=None,
    )


def conditioner(vocabulary: int):
    """The text conditioner: 2 layers, asking with T5's ids."""
    from diffusers import AnimaTextConditioner

    return AnimaTextConditioner(
        source_dim=24,
        target_dim=TEXT_WIDTH,
        model_dim=TEXT_WIDTH,
        num_layers=2,
        num_attention_heads=2,
        target_vocab_size=vocabulary,
    )


def qwen(vocabulary: int):
    """Qwen3's language model: 2 layers, 2 key heads for 4 queries."""
    from transformers import Qwen3Config, Qwen3Model

    return Qwen3Model(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=24,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=True,
        )
    )


def autoencoder(latent: int = LATENT_CHANNELS):
    """The VAE of Qwen-Image with 8 channels at its first level."""
    from diffusers import AutoencoderKLQwenImage

    draw = [0.1 * n - 0.2 for n in range(latent)]
    spread = [1.0 + 0.1 * n for n in range(latent)]
    figures = {} if latent == 16 else {"latents_mean": draw, "latents_std": spread}
    return AutoencoderKLQwenImage(base_dim=8, z_dim=latent, num_res_blocks=2, **figures)


def qwen_tokenizer(folder: Path) -> int:
    """Byte-level BPE as Qwen has it, without any token at the start or end; returns the vocabulary's size."""
    from transformers import Qwen2Tokenizer

    tokens, merges = list(byte_alphabet()), []
    for word in WORDS:
        parts = ["Ġ", *word]
        while len(parts) > 1:
            left, right = parts[0], parts[1]
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append((left, right))
            parts = [left + right, *parts[2:]]
    folder.mkdir(parents=True)
    vocab = {token: number for number, token in enumerate([*tokens, "<|endoftext|>"])}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def _write(path: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    words = qwen_tokenizer(path / "tokenizer")
    pieces = t5_tokenizer(path / "t5_tokenizer")
    parts = {
        "text_encoder": ("transformers", qwen(words)),
        "text_conditioner": ("diffusers", conditioner(pieces)),
        "transformer": ("diffusers", _denoiser()),
        "vae": ("diffusers", autoencoder()),
        "scheduler": ("diffusers", FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0)),
    }
    index: dict[str, Any] = {"_class_name": "AnimaModularPipeline", "_blocks_class_name": "AnimaAutoBlocks"}
    for name, (library, part) in parts.items():
        part.save_pretrained(path / name)
        index[name] = [library, type(part).__name__, {"subfolder": name}]
    index["tokenizer"] = ["transformers", "Qwen2Tokenizer", {"subfolder": "tokenizer"}]
    index["t5_tokenizer"] = ["transformers", "T5TokenizerFast", {"subfolder": "t5_tokenizer"}]
    (path / "modular_model_index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
