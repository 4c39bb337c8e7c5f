"""Computes the attention of transformer blocks through the run's route, in place of diffusers' processors."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from backend.lora.fused_layers import apply_together
from backend.shapes.attention_routes import Route
from backend.shapes.rotary_embedding import Rope, rotate_neighbours

Rotate = Callable[[Tensor, Rope], Tensor]


def set_processor(attention: Any, processor: Any) -> None:
    """Let `processor` compute an attention of diffusers', without asking at each call which arguments it takes.

    diffusers does so by `inspect.signature`, which torch's compiler would trace line by line in each attention.
    """
    attention.set_processor(processor)
    attention.forward = MethodType(_processed, attention)


def _processed(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Any = None,
    *more: Any,
    **others: Any,
) -> Any:
    """Forward of an attention: its processor's, with all that the block gives."""
    return self.processor(self, hidden_states, encoder_hidden_states, attention_mask, *more, **others)


class JointAttention:
    """Attention on the joint sequence [text | image], or of one stream alone; one object serves all blocks.

    Takes the place of diffusers' processors of FLUX, SD3, Qwen-Image and Cosmos, whose arithmetic it has: text comes
    first, its padding at the left and the image's at the right. Masks are whatever the route prepared, or None.
    longest: joint tokens that a dynamic graph is bounded to. rotate: the model's pairing of rotary embedding.
    """

    # diffusers sets these on every processor when a user changes attention backends; ours answers to the route alone.
    _attention_backend = None
    _parallel_config = None

    def __init__(self, route: Route, longest: int | None = None, rotate: Rotate = rotate_neighbours) -> None:
        self.route, self.longest, self.rotate = route, longest, rotate

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        # FLUX's attention gives these by their place
        attention_mask: Any = None,
        image_rotary_emb: Rope | None = None,
        encoder_hidden_states_mask: None = None,
        image_mask: Any = None,
        projected: tuple[Tensor, ...] | None = None,
    ) -> Any:
        """Both streams (image, text) where there is text, else one (B, S, D).

        encoder_hidden_states_mask: a block's, never used. image_mask: in place of `attention_mask` where the image is
        alone. projected: query, key and value (B, S, D) where the block has made them already.
        """
        size = (attn.heads, -1)
        made = projected or apply_together(hidden_states, attn.to_q, attn.to_k, attn.to_v)
        query, key, value = (part.unflatten(-1, size) for part in made)
        if attn.norm_q is not None:
            query, key = attn.norm_q(query), attn.norm_k(key)
        mask = attention_mask
        if encoder_hidden_states is not None:
            added = apply_together(encoder_hidden_states, attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            text_query, text_key, text_value = (part.unflatten(-1, size) for part in added)
            if attn.norm_added_q is not None:
                text_query, text_key = attn.norm_added_q(text_query), attn.norm_added_k(text_key)
            query = torch.cat([text_query, query], dim=1)
            key = torch.cat([text_key, key], dim=1)
            value = torch.cat([text_value, value], dim=1)
        elif image_mask is not None:
            mask = image_mask
        if image_rotary_emb is not None:
            query, key = self.rotate(query, image_rotary_emb), self.rotate(key, image_rotary_emb)
        if self.longest is not None and query.shape[1] > self.longest:
            # Nothing to do: the comparison alone bounds a dynamic graph to the sizes that the plan knows.
            pass
        # Under autocast the norms give float32; flash kernels want the values' dtype.
        out = self.route.attend(query.to(value.dtype), key.to(value.dtype), value, mask).flatten(2, 3)
        if encoder_hidden_states is None:
            return out if attn.pre_only else attn.to_out[1](attn.to_out[0](out))
        words = encoder_hidden_states.shape[1]
        text_out, image_out = out.split_with_sizes([words, out.shape[1] - words], dim=1)
        image_out = attn.to_out[1](attn.to_out[0](image_out.contiguous()))
        # a last block has no use for its text
        return image_out, text_out if attn.context_pre_only else attn.to_add_out(text_out.contiguous())
