"""Computes a single-stream block of FLUX's build on the joint sequence [text | image]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backend.lora.fused_layers import apply_together, is_fused
from backend.shapes.rotary_embedding import Rope


def joint_single(block: Any, hidden_states: Tensor, temb: Tensor, rope: Rope | None, **attention: Any) -> Tensor:
    """What a block of feed-forward and attention side by side makes of the joint sequence (B, S, D) -> (B, S, D).

    diffusers' own forward joins text and image, and returns two slices of one tensor: a copy a block, and at the next
    block an input with other strides (another graph). attention: what its attention gets besides.
    """
    normed, gate = block.norm(hidden_states, emb=temb)
    if is_fused(block.proj_mlp):
        mlp, *projected = apply_together(normed, block.proj_mlp, block.attn.to_q, block.attn.to_k, block.attn.to_v)
        attention = {**attention, "projected": tuple(projected)}
    else:
        mlp = block.proj_mlp(normed)
    grown = block.act_mlp(mlp)
    attended = block.attn(hidden_states=normed, image_rotary_emb=rope, **attention)
    return hidden_states + gate.unsqueeze(1) * block.proj_out(torch.cat([attended, grown], dim=2))
