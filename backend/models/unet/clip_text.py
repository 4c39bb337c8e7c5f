"""Runs CLIP text encoders on captions longer than they read.

Longer captions go through the encoder in chunks of 75 tokens, each between a start and an end token of its own, and are
joined to one: the first start, all tokens, the last end (sd-scripts ``max_token_length``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import CLIPTokenizer


def token_ids(tokenizer: CLIPTokenizer, captions: Sequence[str], length: int) -> Tensor:
    """(B, n, 77) token numbers of captions cut and padded to `length` = 2 + 75 n; n = 1 as diffusers' pipelines do.

    A chunk that nothing is left for is an empty caption's.
    """
    size = tokenizer.model_max_length - 2
    count = max(1, (length - 2) // size)
    start, end, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    rows = []
    for caption in captions:
        tokens = tokenizer(caption, truncation=True, max_length=2 + size * count).input_ids[1:-1]
        for at in range(0, size * count, size):
            chunk = [start, *tokens[at : at + size], end]
            rows.append(chunk + [pad] * (size + 2 - len(chunk)))
    return torch.tensor(rows).view(len(captions), count, size + 2)


def joined(states: Tensor, captions: int) -> Tensor:
    """(B, 2 + 75 n, D) of the states (B n, 77, D) of all chunks of B captions."""
    each = states.unflatten(0, (captions, -1))
    return torch.cat([each[:, 0, :1], each[:, :, 1:-1].flatten(1, 2), each[:, -1, -1:]], dim=1)


def layers_of(encoder: nn.Module) -> nn.ModuleList:
    """The layers of a CLIP text encoder, in their order."""
    return getattr(encoder, "text_model", encoder).encoder.layers
