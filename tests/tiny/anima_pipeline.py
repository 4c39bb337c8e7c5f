"""What the tests of Anima share: diffusers' forward without torchvision, and its pipeline over a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.nn.functional as F
from diffusers import (
    AnimaAutoBlocks,
    AnimaModularPipeline,
    AnimaTextConditioner,
    AutoencoderKLQwenImage,
    ClassifierFreeGuidance,
    CosmosTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.models.transformers import transformer_cosmos
from torch import Tensor
from transformers import Qwen2Tokenizer, Qwen3Model, T5TokenizerFast


def without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give diffusers' forward what it takes from torchvision: a resize to the nearest pixel."""
    functional = SimpleNamespace(resize=lambda mask, size, interpolation: F.interpolate(mask, size, mode="nearest"))
    modes = SimpleNamespace(NEAREST="nearest")
    here = SimpleNamespace(functional=functional, InterpolationMode=modes)
    monkeypatch.setattr(transformer_cosmos, "transforms", here, raising=False)


def pipeline_of(folder: Path, guidance: float = 1.0) -> AnimaModularPipeline:
    """diffusers' own pipeline over the parts of `folder`."""
    pipeline = AnimaAutoBlocks().init_pipeline()
    pipeline.update_components(
        text_encoder=Qwen3Model.from_pretrained(folder / "text_encoder"),
        tokenizer=Qwen2Tokenizer.from_pretrained(folder / "tokenizer"),
        t5_tokenizer=T5TokenizerFast.from_pretrained(folder / "t5_tokenizer"),
        text_conditioner=AnimaTextConditioner.from_pretrained(folder / "text_conditioner"),
        transformer=CosmosTransformer3DModel.from_pretrained(folder / "transformer"),
        vae=AutoencoderKLQwenImage.from_pretrained(folder / "vae"),
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        guider=ClassifierFreeGuidance(guidance_scale=guidance),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def published(transformer: dict[str, Tensor], conditioner: dict[str, Tensor], root: str) -> dict[str, Tensor]:
    """Anima's own file, by the names of cosmos-predict2's modules; shares nothing with `anima.layout`."""
    attention = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out.0": "output_proj"}
    attention |= {"norm_q": "q_norm", "norm_k": "k_norm"}
    names = {"attn1": "self_attn", "attn2": "cross_attn"}
    whole = {
        "patch_embed.proj": "x_embedder.proj.1",
        "time_embed.t_embedder.linear_1": "t_embedder.1.linear_1",
        "time_embed.t_embedder.linear_2": "t_embedder.1.linear_2",
        "time_embed.norm": "t_embedding_norm",
        "norm_out.linear_1": "final_layer.adaln_modulation.1",
        "norm_out.linear_2": "final_layer.adaln_modulation.2",
        "proj_out": "final_layer.linear",
    }
    tensors = {}
    for name, value in transformer.items():
        path = name.removesuffix(".weight")
        if path not in whole:
            _, number, module, *rest = path.split(".")
            inner = ".".join(rest)
            if module in names:
                end = f"{names[module]}.{attention[inner]}"
            elif module == "ff":
                end = {"net.0.proj": "mlp.layer1", "net.2": "mlp.layer2"}[inner]
            else:
                part = {"norm1": "self_attn", "norm2": "cross_attn", "norm3": "mlp"}[module]
                end = f"adaln_modulation_{part}.{inner.removeprefix('linear_')}"
            new = f"blocks.{number}.{end}"
        else:
            new = whole[path]
        tensors[f"{root}{new}.weight"] = value
    return tensors | {f"{root}llm_adapter.{name}": value for name, value in conditioner.items()}
