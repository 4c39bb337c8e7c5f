"""A random tiny HunyuanVideo pipeline in the real diffusers layout, made locally in about a second.

Real classes, real file names, tokenizers made from nothing; Llama's cuts the pipeline's template into the 95 tokens
that the real one does. Dimensions are small, structure is HunyuanVideo's (guidance input, a refiner of two blocks, VAE
of four levels that takes four frames as one).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.bench.rehearsal.tokenizers import clip_tokenizer, llama_tokenizer
from backend.families.hunyuan_video.facts import TEMPLATE
from tests.tiny.anima import _tiny

HEADS, HEAD_DIM, LATENT_CHANNELS = 2, 32, 4
TEXT_WIDTH, POOLED_WIDTH = 32, 16


def make_tiny_denoiser(seed: int = 0, **config: Any):
    """The fixture's transformer alone, random, fp32: HunyuanVideoTransformer3DModel of width 64."""
    return _tiny(lambda: denoiser(**config), seed)


def make_tiny_hunyuan_video(path: Path, seed: int = 0) -> Path:
    """Write the pipeline to the folder `path` (made if missing) and return it."""
    _tiny(lambda: _write(Path(path)), seed)
    return Path(path)


def config_of(double: int = 2, single: int = 2, latent: int = LATENT_CHANNELS, **config: Any) -> dict[str, Any]:
    """The transformer's config."""
    return {
        "in_channels": latent,
        "out_channels": latent,
        "num_attention_heads": HEADS,
        "attention_head_dim": HEAD_DIM,
        "num_layers": double,
        "num_single_layers": single,
        "num_refiner_layers": 2,
        "text_embed_dim": TEXT_WIDTH,
        "pooled_projection_dim": POOLED_WIDTH,
        "rope_axes_dim": (4, 14, 14),
        **config,
    }


def denoiser(**config: Any):
    """The transformer, as its constructor leaves it."""
    from diffusers import HunyuanVideoTransformer3DModel

    return HunyuanVideoTransformer3DModel(**config_of(**config))


def llama(vocabulary: int, width: int = TEXT_WIDTH, head: int = 16):
    """Four layers, of which the denoiser reads the second's states."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=width // head,
        num_key_value_heads=1,
        head_dim=head,
        rope_theta=500000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    return LlamaModel(config)


def clip(tokenizer: Any, width: int = POOLED_WIDTH):
    """A CLIP text encoder."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config)


def autoencoder(latent: int = LATENT_CHANNELS, width: int = 8, layers: int = 1, norms: int = 4):
    """The VAE, four levels as in the real one."""
    from diffusers import AutoencoderKLHunyuanVideo

    return AutoencoderKLHunyuanVideo(
        latent_channels=latent, block_out_channels=(width,) * 4, layers_per_block=layers, norm_num_groups=norms
    )


def _write(path: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoPipeline
    from transformers import CLIPTokenizer, PreTrainedTokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    words = llama_tokenizer(path / "tokenizer", TEMPLATE)
    clip_tokenizer(path / "tokenizer_2")
    second = CLIPTokenizer.from_pretrained(path / "tokenizer_2")
    HunyuanVideoPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=7.0),
        vae=autoencoder(),
        text_encoder=llama(words),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(path / "tokenizer"),
        text_encoder_2=clip(second),
        tokenizer_2=second,
        transformer=denoiser(),
    ).save_pretrained(path)
