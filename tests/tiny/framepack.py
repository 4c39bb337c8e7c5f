"""A random tiny FramePack pipeline in diffusers layout, and what its forward is called with.

HunyuanVideo's parts (tests/tiny/hunyuan_video.py), a transformer with inputs for what is behind a section, and a SigLIP
that makes as many tokens of a picture as the real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backend.bench.rehearsal.tokenizers import clip_tokenizer, llama_tokenizer
from backend.families.hunyuan_video.facts import TEMPLATE
from backend.families.hunyuan_video.framepack_facts import FRAMEPACK_FACTS, IMAGE_TOKENS
from tests.tiny import hunyuan_video
from tests.tiny.anima import _tiny
from tests.tiny.clips import write_clip
from tests.tiny.forward import Batch, add_lora
from tests.tiny.hunyuan_video import LATENT_CHANNELS, POOLED_WIDTH, TEXT_WIDTH

IMAGE_WIDTH = 16

# Of runs on the clips of `write_sections`.
SECTIONS = {
    "dataset": {"resolution": 48, "min_bucket_size": 16, "validation_split": 0.0},
    "video": {"target_frames": [37, 73]},
}


def make_tiny_denoiser(seed: int = 0, **config: Any):
    """The fixture's transformer alone, random, fp32."""
    return _tiny(lambda: denoiser(**config), seed)


def make_tiny_framepack(path: Path, seed: int = 0) -> Path:
    """Write the pipeline to the folder `path` (made if missing) and return it."""
    _tiny(lambda: _write(Path(path)), seed)
    return Path(path)


def denoiser(**config: Any):
    """The transformer, as its constructor leaves it."""
    from diffusers import HunyuanVideoFramepackTransformer3DModel

    whole = {"has_image_proj": True, "image_proj_dim": IMAGE_WIDTH, "has_clean_x_embedder": True, **config}
    return HunyuanVideoFramepackTransformer3DModel(**hunyuan_video.config_of(**whole))


def eyes():
    """SigLIP: 27 x 27 tokens of pictures of 54 px."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=IMAGE_WIDTH, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=54,
        patch_size=2,
    )  # fmt: skip
    return SiglipVisionModel(config)


def make_batch(sizes: list[tuple[int, int]], lengths: list[int], seed: int = 3) -> Batch:
    """Sections of latents of `sizes` (h, w), with so many sections between start and section: 0, 1, 2, ..."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    return Batch(
        [normal(LATENT_CHANNELS, 10, *size) for size in sizes],
        torch.rand(len(sizes), generator=draw) * 0.9 + 0.1,
        [
            {
                "prompt_embeds": normal(length, TEXT_WIDTH),
                "pooled": normal(POOLED_WIDTH),
                "image_embeds": normal(IMAGE_TOKENS, IMAGE_WIDTH),
                "behind": normal(LATENT_CHANNELS, 20, *size),
                "between": torch.tensor(number),
            }
            for number, (size, length) in enumerate(zip(sizes, lengths, strict=True))
        ],
    )


def model_with_lora(targets: list[str] | None = None) -> nn.Module:
    """Tiny denoiser in train mode with a LoRA that does something."""
    model = make_tiny_denoiser().train()
    add_lora(model, targets or FRAMEPACK_FACTS.default_targets)
    return model


def write_sections(folder: Path) -> Path:
    """Write three captioned clips that give one, two and two sections at 30 frames a second, and return the folder."""
    for number, frames in enumerate((40, 75, 80)):
        write_clip(folder / f"{number}.mp4", frames, 30, size=(48, 48))
        (folder / f"{number}.txt").write_text("a grey cat " * (1 + 3 * number))
    return folder


def _write(path: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoFramepackPipeline
    from transformers import CLIPTokenizer, PreTrainedTokenizerFast, SiglipImageProcessor

    path.mkdir(parents=True, exist_ok=True)
    words = llama_tokenizer(path / "tokenizer", TEMPLATE)
    clip_tokenizer(path / "tokenizer_2")
    second = CLIPTokenizer.from_pretrained(path / "tokenizer_2")
    HunyuanVideoFramepackPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=7.0),
        vae=hunyuan_video.autoencoder(),
        text_encoder=hunyuan_video.llama(words),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(path / "tokenizer"),
        text_encoder_2=hunyuan_video.clip(second),
        tokenizer_2=second,
        transformer=denoiser(),
        image_encoder=eyes(),
        feature_extractor=SiglipImageProcessor(size={"height": 54, "width": 54}),
    ).save_pretrained(path)
