"""Saves the trained pipeline, looks at what it draws, and packs it for the way home."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline
from PIL import Image
from transformers import CLIPTokenizer, T5TokenizerFast

from .base import TEXT_LENGTH, Models
from .pace import autocast
from .pictures import Bucket
from .vae import to_pixels

PROMPTS = (
    "a big red house in a green meadow",
    "a blue cat in the snow",
    "an orange fish under the sea",
    "a green robot in the desert, under a yellow sun",
    "a big pink mushroom at night",
    "two purple trees in a green meadow",
    "a small yellow car on the right in the snow",
    "a picture of a big purple flower on the left in the desert, a yellow sun is shining in the sky, on the right",
    "a red car on the left and a blue house on the right in a green meadow",
    "a yellow robot next to a red flower at night, under a pale moon",
    "a big yellow fish in the deep blue water",
    "a big zorbl in a green meadow",
)
SCHEDULER = {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15,
             "base_image_seq_len": 256, "max_image_seq_len": 4096}  # fmt: skip


def save_pipeline(folder: Path, models: Models, vae: AutoencoderKL, t5: T5TokenizerFast, clip: CLIPTokenizer) -> None:
    """Write a FluxPipeline in diffusers' layout, float16 safetensors. The models move to the CPU and to
    float16: half the bytes of float32, and finer than bfloat16 for weights of this size."""
    clip_files = {n: (folder / "tokenizer" / n).read_bytes() for n in ("vocab.json", "merges.txt")}
    for module in (vae, *models.modules()):
        # Gradients may still be outputs of a CUDA graph, which no one may move.
        module.requires_grad_(False).zero_grad(set_to_none=True)
        for parameter in module.parameters():
            parameter.grad = None
        module.to("cpu", torch.float16)
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER), vae=vae, text_encoder=models.clip, tokenizer=clip,
        text_encoder_2=models.t5, tokenizer_2=t5, transformer=models.transformer,
    )  # fmt: skip
    pipeline.save_pretrained(folder, safe_serialization=True)
    for name, content in clip_files.items():
        (folder / "tokenizer" / name).write_bytes(content)
    # The class names that FLUX.1 itself has, which every release of transformers knows.
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    index["tokenizer_2"] = ["transformers", "T5TokenizerFast"]
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def load_pipeline(folder: Path, device: torch.device) -> FluxPipeline:
    pipeline = FluxPipeline.from_pretrained(folder, torch_dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device)


def draw(pipeline: FluxPipeline, prompts: list[str], size: tuple[int, int], true_cfg: float, steps: int = 28,
         seed: int = 42) -> list[Image.Image]:  # fmt: skip
    """Draw one picture a prompt, `size` = (width, height) px; `true_cfg` 1 is without guidance."""
    generator = [torch.Generator().manual_seed(seed + i) for i in range(len(prompts))]
    with autocast(pipeline.device):
        return pipeline(
            prompt=prompts, negative_prompt=[""] * len(prompts), true_cfg_scale=true_cfg, width=size[0],
            height=size[1], num_inference_steps=steps, generator=generator, max_sequence_length=TEXT_LENGTH,
        ).images  # fmt: skip


@torch.no_grad()
def _there_and_back(vae: AutoencoderKL, buckets: list[Bucket], device: torch.device) -> list[list[Image.Image]]:
    """A row of pictures and a row of what the autoencoder makes of them."""
    before, after = [], []
    for bucket in buckets:
        pixels = to_pixels(torch.from_numpy(bucket.pixels[:4]).to(device))
        again = vae.decode(vae.encode(pixels).latent_dist.mean).sample.float().clamp(-1, 1)
        array = ((again + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        before += [Image.fromarray(p) for p in bucket.pixels[:4]]
        after += [Image.fromarray(p) for p in array]
    return [before, after]


def _sheet(rows: list[list[Image.Image]], cell: int = 256) -> Image.Image:
    sheet = Image.new("RGB", (cell * max(map(len, rows)), cell * len(rows)), (128, 128, 128))
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            image.thumbnail((cell, cell))
            sheet.paste(image, (x * cell, y * cell))
    return sheet


def look(
    folder: Path,
    path: Path,
    buckets: list[Bucket],
    device: torch.device,
    steps: int = 28,
    prompts: Sequence[str] = PROMPTS,
) -> None:
    """Write a sheet: pictures, their reconstructions, then the prompts' samples without and with guidance, and wide."""
    pipeline = load_pipeline(folder, device)
    prompts = list(prompts)
    rows = _there_and_back(pipeline.vae, buckets, device)
    rows += [draw(pipeline, prompts, (256, 240), cfg, steps) for cfg in (1.0, 2.0, 3.5)]
    rows.append(draw(pipeline, prompts, (256, 256), 2.0, steps, seed=7))
    rows.append(draw(pipeline, prompts, (320, 192), 2.0, steps, seed=7))
    rows.append(draw(pipeline, prompts, (192, 320), 2.0, steps, seed=9))
    _sheet(rows).save(path, optimize=True)


def pack(out: Path, home: Path) -> list[str]:
    """Pack `out` into two tars below 16 MiB each (the transformer, all the rest) and copy the record."""
    home.mkdir(parents=True, exist_ok=True)
    heavy = out / "base" / "transformer"
    with tarfile.open(home / "transformer.tar", "w") as tar:
        tar.add(heavy, heavy.relative_to(out))
    with tarfile.open(home / "rest.tar", "w") as tar:
        for path in sorted(out.rglob("*")):
            if path.is_file() and heavy not in path.parents and path.name != "look.png":
                tar.add(path, path.relative_to(out))
    shutil.copy(out / "demo.json", home / "demo.json")
    made = [home / n for n in ("transformer.tar", "rest.tar")]
    return [f"{p.name}: {p.stat().st_size / 2**20:.1f} MiB" for p in made]
