"""Makes the demo of video training: draws its clips, and writes a tiny Wan with random weights in the real layout.

    python assets/demo/make_video_demo.py --out build/video

It takes seconds on a CPU. The model knows nothing: its samples are noise, and what a run shows is that clips are cut,
encoded, trained and drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from maker.clips import CLIPS, write_clips

HERE = Path(__file__).resolve().parent
TEXT_LENGTH = 64
LATENT = 16


def write_base(folder: Path, seed: int) -> None:
    """The pipeline in diffusers' layout, in bf16 as published ones are; its transformer has 0.3 million parameters."""
    import torch
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from maker.tokenizing import make_t5
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(seed)
    # each word often enough to be a piece of its own
    words = make_t5([clip.caption for clip in CLIPS] * 8, TEXT_LENGTH)
    text = UMT5Config(
        vocab_size=len(words), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    pipeline = WanPipeline(
        tokenizer=words,
        text_encoder=UMT5EncoderModel(text).eval(),
        vae=AutoencoderKLWan(base_dim=4, z_dim=LATENT).eval(),
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        transformer=WanTransformer3DModel(
            in_channels=LATENT, out_channels=LATENT, num_attention_heads=4, attention_head_dim=16, num_layers=4,
            ffn_dim=256, freq_dim=64, text_dim=64,
        ).eval(),
    )  # fmt: skip
    pipeline.to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "video", help="folder for base/ and clips/")
    parser.add_argument("--stage", choices=("all", "clips", "base"), default="all")
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    if args.stage != "base":
        write_clips(args.out / "clips", args.seed)
    if args.stage != "clips":
        write_base(args.out / "base", args.seed)


if __name__ == "__main__":
    main()
