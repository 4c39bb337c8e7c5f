"""Builds what runs of the UNet families are made of: settings, diffusers' pipeline and ComfyUI's names."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline

from backend.config.schema import Config
from backend.families.table import family
from tests.tiny import comfy_maps
from tests.tiny.training import config

PROMPT = {"prompt": "a red circle", "width": 128, "height": 128, "steps": 3, "seed": 5, "true_cfg_scale": 4.0}


def settings(name: str, base: Path, images: Path, where: Path, **changes: dict) -> Config:
    sections = {
        "model": {"base_model": str(base), "family": name},
        "dataset": {
            "folders": [{"path": str(images)}], "resolution": 128, "min_bucket_size": 64, "max_bucket_size": 256,
            "cache_dir": str(where / "cache"), "validation_split": 0.25,
        },
        "compile": {"compile": False, "shape_mode": "off"},
        "training": {"max_train_steps": 4},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
        **changes,
    }  # fmt: skip
    cfg = config(base, images, where, **sections)
    return cfg.model_copy(update={"model": cfg.model.model_copy(update={"text_length": None})})


def pipeline_of(name: str, folder: Path):
    if name == "sdxl":
        pipeline = StableDiffusionXLPipeline.from_pretrained(folder)
    else:
        pipeline = StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    pipeline.scheduler = EulerDiscreteScheduler.from_config(family(name).scheduler_config(folder))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def comfy_map(denoiser: torch.nn.Module) -> set[str]:
    attentions, layers = {}, {}
    for path, module in denoiser.named_modules():
        if path.endswith(".transformer_blocks"):
            attentions[path.removesuffix(".transformer_blocks")] = len(module)
        if path.endswith(".resnets"):
            layers[path.removesuffix(".resnets")] = len(module)
    return comfy_maps.unet(attentions, layers, [p for p, _ in denoiser.named_modules() if p.endswith("samplers.0")])
