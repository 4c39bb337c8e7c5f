"""Compares LoRA files of Wan's runs with what ComfyUI and diffusers read of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.tiny import comfy_maps
from tests.tiny.wan import make_tiny_denoiser, published


def assert_comfyui_takes(tensors: Mapping[str, Tensor]) -> None:
    """Every key of a file in kohya's layout is a native name of the tiny denoiser's layers."""
    stems = {key.split(".")[0] for key in tensors}
    assert stems and stems <= comfy_maps.published(published(make_tiny_denoiser().state_dict()))


def assert_diffusers_holds(net: Any, tensors: Mapping[str, Tensor]) -> None:
    """`net`, into which diffusers loaded a file in kohya's layout, changes a layer by what the file says."""
    layer, stem = net.blocks[0].attn1.to_q, "lora_unet_blocks_0_self_attn_q"
    down, up, alpha = (tensors[f"{stem}.{end}"] for end in ("lora_down.weight", "lora_up.weight", "alpha"))
    (name,) = layer.lora_B
    loaded = layer.lora_B[name].weight @ layer.lora_A[name].weight * layer.scaling[name]
    torch.testing.assert_close(loaded, up @ down * alpha / down.shape[0])
    assert loaded.any()
