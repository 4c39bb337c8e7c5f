"""A random tiny FLUX pipeline in the real diffusers layout, made locally in about a second.

Real classes, real file names, tokenizers trained from nothing: what loads this loads a published FLUX.1 folder too.
Dimensions are small, structure is FLUX.1-dev's (guidance embedding, dynamic shifting, VAE of four levels).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from backend.bench.rehearsal.tokenizers import clip_tokenizer, t5_tokenizer

TEXT_WIDTH, POOLED_WIDTH, HEADS, HEAD_DIM = 32, 24, 2, 16
LATENT_CHANNELS = 4


def _denoiser(double: int, single: int):
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=LATENT_CHANNELS * 4,
        num_layers=double,
        num_single_layers=single,
        attention_head_dim=HEAD_DIM,
        num_attention_heads=HEADS,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=POOLED_WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )


def make_tiny_denoiser(double: int = 2, single: int = 2, seed: int = 0):
    """The fixture's transformer alone, random, fp32: FluxTransformer2DModel of width 32."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _denoiser(double, single).requires_grad_(False)


def make_tiny_flux(path: Path, double: int = 2, single: int = 2, seed: int = 0) -> Path:
    """Write the pipeline to the folder `path` (made if missing) and return it."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _write(Path(path), double, single)
    return Path(path)


def _text_encoders(clip_words, t5_vocab: int):
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    clip = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(clip_words),
            hidden_size=POOLED_WIDTH,
            intermediate_size=2 * POOLED_WIDTH,
            projection_dim=POOLED_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=77,
            bos_token_id=clip_words.bos_token_id,
            eos_token_id=clip_words.eos_token_id,
            pad_token_id=clip_words.pad_token_id,
        )
    )
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=t5_vocab,
            d_model=TEXT_WIDTH,
            d_kv=16,
            d_ff=2 * TEXT_WIDTH,
            num_layers=2,
            num_heads=2,
            feed_forward_proj="gated-gelu",
        )
    )
    return clip, t5


def _write(path: Path, double: int, single: int) -> None:
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline
    from transformers import CLIPTokenizer, T5Tokenizer

    path.mkdir(parents=True, exist_ok=True)
    clip_tokenizer(path / "tokenizer")
    t5_vocab = t5_tokenizer(path / "tokenizer_2")
    clip_words = CLIPTokenizer.from_pretrained(path / "tokenizer")
    clip, t5 = _text_encoders(clip_words, t5_vocab)
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=256,
        scaling_factor=0.3611,
        shift_factor=0.1159,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    scheduler = FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=3.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )
    FluxPipeline(
        scheduler=scheduler,
        vae=vae,
        text_encoder=clip,
        tokenizer=clip_words,
        text_encoder_2=t5,
        tokenizer_2=T5Tokenizer.from_pretrained(path / "tokenizer_2"),
        transformer=_denoiser(double, single),
    ).save_pretrained(path)


def kontext_base(tiny_flux: Path, where: Path) -> Path:
    """The tiny FLUX folder as a FLUX.1 Kontext model: the same parts under another pipeline's name."""
    base = Path(shutil.copytree(tiny_flux, where))
    index = base / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"_class_name": "FluxKontextPipeline"}))
    return base
