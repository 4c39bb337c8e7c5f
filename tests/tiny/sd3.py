"""A random tiny SD3.5 pipeline in the real diffusers layout, made locally in about a second.

Real classes, real file names, tokenizers made from nothing. Dimensions are small, structure is SD3.5 medium's: three
text encoders, norms of queries and keys, first blocks with a second attention, a last one that drops its text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.bench.rehearsal.tokenizers import clip_tokenizer, t5_tokenizer
from tests.tiny.anima import _tiny

HEADS, HEAD_DIM, LATENT_CHANNELS, MOST_SIDE = 2, 16, 4, 16
FIRST_WIDTH, SECOND_WIDTH, TEXT_WIDTH = 16, 24, 48
POOLED_WIDTH = FIRST_WIDTH + SECOND_WIDTH


def make_tiny_denoiser(kind: str = "3.5-medium", seed: int = 0):
    """The fixture's transformer alone, random, fp32. kind: as `denoiser`."""
    return _tiny(lambda: denoiser(kind), seed)


def make_tiny_sd3(path: Path, seed: int = 0) -> Path:
    """Write the pipeline to the folder `path` (made if missing) and return it."""
    _tiny(lambda: _write(Path(path)), seed)
    return Path(path)


def denoiser(kind: str = "3.5-medium", latent: int = LATENT_CHANNELS, **widths: int):
    """The transformer, as its constructor leaves it: of the build of ``3-medium``, ``3.5-large`` or ``3.5-medium``."""
    from diffusers import SD3Transformer2DModel

    dual = (0, 1) if kind == "3.5-medium" else ()
    values = {
        "attention_head_dim": HEAD_DIM,
        "num_attention_heads": HEADS,
        "joint_attention_dim": TEXT_WIDTH,
        "caption_projection_dim": HEADS * HEAD_DIM,
        "pooled_projection_dim": POOLED_WIDTH,
        **widths,
    }
    return SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=latent,
        out_channels=latent,
        num_layers=3 + len(dual),
        pos_embed_max_size=MOST_SIDE,
        dual_attention_layers=dual,
        qk_norm=None if kind == "3-medium" else "rms_norm",
        **values,
    )


def clip(tokenizer: Any, width: int, layers: int = 2):
    """A CLIP text encoder with its projection."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModelWithProjection(config)


def t5(vocabulary: int, width: int = TEXT_WIDTH):
    """T5's encoder."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return T5EncoderModel(config)


def autoencoder(latent: int = LATENT_CHANNELS):
    """The VAE, four levels as in the real one, with SD3's published scale and shift."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=latent,
        norm_num_groups=4,
        sample_size=256,
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _write(path: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline
    from transformers import CLIPTokenizer, T5Tokenizer

    path.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer", "tokenizer_2"):
        clip_tokenizer(path / name)
    words = t5_tokenizer(path / "tokenizer_3")
    tokenizers = [CLIPTokenizer.from_pretrained(path / name) for name in ("tokenizer", "tokenizer_2")]
    StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0),
        vae=autoencoder(),
        text_encoder=clip(tokenizers[0], FIRST_WIDTH),
        tokenizer=tokenizers[0],
        text_encoder_2=clip(tokenizers[1], SECOND_WIDTH, 3),
        tokenizer_2=tokenizers[1],
        text_encoder_3=t5(words),
        tokenizer_3=T5Tokenizer.from_pretrained(path / "tokenizer_3"),
        transformer=denoiser(),
    ).save_pretrained(path)
