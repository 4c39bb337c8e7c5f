"""Chooses which of a UNet's blocks are compiled, recomputed and counted as classes, and sets their attention.

Compiled are the transformer blocks (``BasicTransformerBlock``), where nearly all of the time goes: they see a picture
as a sequence, so that sizes of equal token count share a graph. Convolutions see height and width and would need a
graph for each size; they stay eager. Blocks of one level have one width and one token count: a level is a class. The
level below the last downsampling without attention of its own (SD 1.5) leaves its middle block a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from backend.lora.fused_layers import apply_together
from backend.models.common.attention import set_processor
from backend.shapes.attention_routes import Route
from backend.shapes.graph_identity import own_code

Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]

_MARKS = "marks_tokens"
"""Attribute of the denoiser: whether the token axis is marked dynamic."""


def levels_of(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """The transformer blocks by class (``level0`` is the finest), in the order in which they run within a class."""
    levels: dict[str, list[nn.Module]] = {}
    count = len(denoiser.down_blocks)

    def add(kind: str, block: nn.Module | None) -> None:
        for attention in getattr(block, "attentions", None) or ():
            levels.setdefault(kind, []).extend(attention.transformer_blocks)

    for number, block in enumerate(denoiser.down_blocks):
        add(f"level{number}", block)
    last = f"level{count - 1}"
    add(last if last in levels else "mid", denoiser.mid_block)
    for number, block in enumerate(denoiser.up_blocks):
        add(f"level{count - 1 - number}", block)
    return {kind: nn.ModuleList(blocks) for kind, blocks in levels.items()}


def running_order(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """All transformer blocks in the order in which they run, for what follows them one by one (block swap)."""
    lists = block_lists(denoiser)
    inside = {id(block) for blocks in lists.values() for block in blocks}
    ways = (denoiser.down_blocks, denoiser.mid_block, denoiser.up_blocks)
    return {"block": nn.ModuleList(b for way in ways for b in way.modules() if id(b) in inside)}


def block_lists(denoiser: nn.Module) -> dict[str, nn.ModuleList]:
    """The classes of blocks, ready to be compiled: each with code of its own, and borders that look alike."""
    lists = levels_of(denoiser)
    if _MARKS not in denoiser.__dict__:
        denoiser.__dict__[_MARKS] = False
        for number, (kind, blocks) in enumerate(lists.items()):
            forward = own_code(type(blocks[0]).forward, kind, number)
            for block in blocks:
                block.forward = MethodType(forward, block)
                block.register_forward_pre_hook(_border(denoiser), with_kwargs=True)
    return lists


def _border(denoiser: nn.Module) -> Hook:
    """Makes the inputs of all blocks of a class alike: contiguous, and requiring a gradient while one is made.

    Runs outside of the compiled block and inside of what a checkpoint recomputes, so that a mark is set again there.
    """

    def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden: Tensor = args[0].contiguous()
        # positionally under checkpointing: hidden states, their mask, then the text
        text = kwargs["encoder_hidden_states"] if "encoder_hidden_states" in kwargs else args[2]
        if torch.is_grad_enabled() and not hidden.requires_grad:
            hidden = hidden.detach().requires_grad_()
        if denoiser.__dict__[_MARKS]:
            torch._dynamo.maybe_mark_dynamic(hidden, 1)
        return (hidden,), {"encoder_hidden_states": text}

    return hook


class UnetProcessor:
    """Attention of the transformer blocks on the run's route; the arithmetic of diffusers' ``AttnProcessor2_0``."""

    # diffusers sets these on every processor when a user changes attention backends; ours answers to the route alone.
    _attention_backend = None
    _parallel_config = None

    def __init__(self, route: Route) -> None:
        self.route = route

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        size = (attn.heads, -1)
        if encoder_hidden_states is None:
            made = apply_together(hidden_states, attn.to_q, attn.to_k, attn.to_v)
            out = self.route.attend(*(part.unflatten(-1, size) for part in made), None)
        else:
            made = (attn.to_q(hidden_states), *apply_together(encoder_hidden_states, attn.to_k, attn.to_v))
            # Text is never padded here, and of another length, which the operators for one joint sequence don't take.
            out = self.route.plain(*(part.unflatten(-1, size) for part in made))
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))


def install(denoiser: nn.Module, route: Route, longest: int | None = None) -> None:
    """Make `route` the attention of every block. longest: given where token axes are dynamic."""
    lists = block_lists(denoiser)
    denoiser.__dict__[_MARKS] = longest is not None
    processor = UnetProcessor(route)
    for blocks in lists.values():
        for block in blocks:
            set_processor(block.attn1, processor)
            set_processor(block.attn2, processor)
