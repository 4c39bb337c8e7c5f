"""Random tiny SDXL and Stable Diffusion 1.5 pipelines in the real diffusers layout, made locally in a second or two.

Real classes, real file names, a tokenizer trained from nothing: what loads these loads a published folder too. Numbers
of levels, kinds of blocks and the way from text to UNet are the originals'; widths and layers are small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.bench.rehearsal.tokenizers import clip_tokenizer

FIRST_WIDTH, SECOND_WIDTH, POOLED_WIDTH, TIME_WIDTH = 16, 24, 24, 8
LATENT_CHANNELS = 4
SCHEDULE: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
    "timestep_spacing": "leading",
}


def make_tiny_unet(family: str = "sdxl", seed: int = 0):
    """The fixture's UNet alone, random, fp32."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (_sdxl_unet if family == "sdxl" else _sd15_unet)().requires_grad_(False)


def make_tiny_sd(path: Path, family: str = "sdxl", prediction: str = "epsilon", seed: int = 0) -> Path:
    """Write the pipeline to the folder `path` (made if missing) and return it. prediction: of its scheduler."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        (_write_sdxl if family == "sdxl" else _write_sd15)(Path(path), prediction)
    return Path(path)


def _sdxl_unet():
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        block_out_channels=(8, 16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        transformer_layers_per_block=(1, 1, 2),
        attention_head_dim=(1, 2, 4),
        cross_attention_dim=FIRST_WIDTH + SECOND_WIDTH,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=TIME_WIDTH,
        projection_class_embeddings_input_dim=POOLED_WIDTH + 6 * TIME_WIDTH,
        norm_num_groups=4,
        sample_size=16,
    )


def _sd15_unet():
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        block_out_channels=(8, 16, 32, 32),
        down_block_types=(*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"),
        up_block_types=("UpBlock2D", *["CrossAttnUpBlock2D"] * 3),
        layers_per_block=1,
        attention_head_dim=2,
        cross_attention_dim=FIRST_WIDTH,
        norm_num_groups=4,
        sample_size=16,
    )


def _vae(scale: float):
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=128,
        scaling_factor=scale,
    )


def _clip_config(tokenizer: Any, width: int, pooled: int, act: str):
    from transformers import CLIPTextConfig

    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=pooled,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=77,
        hidden_act=act,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _write_sdxl(path: Path, prediction: str) -> None:
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline
    from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

    path.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer", "tokenizer_2"):
        clip_tokenizer(path / name)
    first, second = (CLIPTokenizer.from_pretrained(path / name) for name in ("tokenizer", "tokenizer_2"))
    second.pad_token = "!"  # as SDXL's second tokenizer has it
    StableDiffusionXLPipeline(
        vae=_vae(0.13025),
        text_encoder=CLIPTextModel(_clip_config(first, FIRST_WIDTH, FIRST_WIDTH, "quick_gelu")),
        text_encoder_2=CLIPTextModelWithProjection(_clip_config(second, SECOND_WIDTH, POOLED_WIDTH, "gelu")),
        tokenizer=first,
        tokenizer_2=second,
        unet=_sdxl_unet(),
        scheduler=EulerDiscreteScheduler(**SCHEDULE, prediction_type=prediction),
    ).save_pretrained(path)


def _write_sd15(path: Path, prediction: str) -> None:
    from diffusers import PNDMScheduler, StableDiffusionPipeline
    from transformers import CLIPTextModel, CLIPTokenizer

    path.mkdir(parents=True, exist_ok=True)
    clip_tokenizer(path / "tokenizer")
    tokenizer = CLIPTokenizer.from_pretrained(path / "tokenizer")
    StableDiffusionPipeline(
        vae=_vae(0.18215),
        text_encoder=CLIPTextModel(_clip_config(tokenizer, FIRST_WIDTH, FIRST_WIDTH, "quick_gelu")),
        tokenizer=tokenizer,
        unet=_sd15_unet(),
        scheduler=PNDMScheduler(**SCHEDULE, prediction_type=prediction, skip_prk_steps=True),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(path)
