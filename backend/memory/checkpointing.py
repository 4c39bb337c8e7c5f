"""Chooses which blocks are computed again in the backward pass, and where their inputs are kept until then.

One hook serves every family: diffusers' ``_gradient_checkpointing_func``, called with a function and its arguments. A
family's core must do three things:

- take it as ``checkpoint = self._gradient_checkpointing_func if self.gradient_checkpointing else None``, and call a
  block as ``checkpoint(function, *arguments)`` while gradients are made (``torch.is_grad_enabled()``), plainly
  otherwise;
- pass the block (an ``nn.Module``) as that function or among its arguments, and every tensor that depends on trained
  weights as an argument (tuples are looked into), never through a closure;
- let go of the tensors it passed in: what it keeps a name for stays on the device.

The hook sits outside of the compiled block, so that forward and recompute run the graph that training without
checkpointing runs: no kind costs a graph. Random numbers (LoRA dropout) are the same in both. `auto` leaves the second
forward out where a compiled block recomputes in its own backward graph: the same memory for less time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch._functorch.config
from torch import nn
from torch.utils.checkpoint import checkpoint

from backend.compile.model_compiler import BlockForward
from backend.compile.torch_config import set_for_all_threads
from backend.memory import kept_attention
from backend.memory.activation_offload import ActivationOffload

log = logging.getLogger(__name__)

KINDS = ("auto", "block", "attention", "offload", "selective")
"""What `training.gradient_checkpointing` can mean; off is its absence."""

Hook = Callable[..., Any]


def apply(denoiser: nn.Module, kind: str, random: bool = True) -> ActivationOffload | None:
    """Switch `denoiser` to a kind of checkpointing: off, or one of KINDS. Returns what holds offloaded inputs.

    block: every block is recomputed from its input. auto: as block, but compiled blocks do it in their backward graphs
    where they can (`backend.config.checkpointing`). attention: as auto, with attention's results kept. offload: as
    block, with the inputs on the host. selective: every second block is recomputed, the others keep their insides: half
    of the saving for half of the time. random: blocks draw random numbers (LoRA dropout), which a second forward must
    draw again. ValueError for an unknown kind, and for a model that has no checkpointing.
    """
    if kind not in ("off", *KINDS):
        raise ValueError(f"checkpointing kind {kind!r} is unknown; known: off, {', '.join(KINDS)}")
    if kind == "off":
        denoiser.disable_gradient_checkpointing()
        return None
    offload = ActivationOffload() if kind == "offload" else None
    hooks = {"auto": RecomputeInGraph, "attention": KeepAttention, "block": Recompute, "selective": Selective}
    denoiser.enable_gradient_checkpointing(offload or hooks[kind](random))
    return offload


class Recompute:
    """Calls a function and keeps only its arguments; the rest is computed again in the backward pass.

    random: as in `apply`. Without it nothing is asked of the generators, which a pass that is being recorded
    (`backend.compile.cuda_graphs.recording`) could not answer.
    """

    def __init__(self, random: bool = True) -> None:
        self._random = random

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=self._random, **named)


class RecomputeInGraph(Recompute):
    """As `Recompute`, but a block whose compiled backward recomputes by itself is called plainly.

    Asked at every call: a block that fails to compile, or was never compiled, is recomputed from outside.
    """

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        block = _block(function, arguments)
        if block is not None and isinstance(block.forward, BlockForward) and block.forward.recomputes:
            return function(*arguments, **named)
        return super().__call__(function, *arguments, **named)


class KeepAttention(RecomputeInGraph):
    """As `RecomputeInGraph`, with attention's results kept, in the graphs and by eager blocks alike.

    The operators of a compiled block can't be seen from outside: one that doesn't recompute in its graph, as with
    dropout, is recomputed as a whole.
    """

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        block = _block(function, arguments)
        compiled = block is not None and isinstance(block.forward, BlockForward) and block.forward.compiled is not None
        if not compiled:
            named["context_fn"] = kept_attention.contexts
        return super().__call__(function, *arguments, **named)


def _block(function: Callable[..., Any], arguments: tuple[Any, ...]) -> nn.Module | None:
    """The block that a hook was called for."""
    return next((each for each in (function, *arguments) if isinstance(each, nn.Module)), None)


class Selective(Recompute):
    """Recomputes the blocks with an even number and leaves the others alone.

    Operators inside of a compiled block can't be chosen from outside of it (that is the activation budget's work), so
    the choice is between blocks, which works eager and compiled, and makes no difference to any graph.
    """

    def __init__(self, random: bool = True) -> None:
        super().__init__(random)
        self._numbers: dict[int, int] = {}

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        # Blocks are numbered as they first come: the order of a forward never changes.
        key = id(_block(function, arguments) or function)
        if self._numbers.setdefault(key, len(self._numbers)) % 2:
            return function(*arguments, **named)
        return super().__call__(function, *arguments, **named)


def set_activation_budget(share: float | None, recompute: bool = False, attention: bool = False) -> None:
    """Share of a compiled block's activations that may be kept, 0 to 1.

    None keeps what torch finds fastest, or nothing where blocks `recompute` within their graphs, or then the results of
    `attention` alone, whatever the share.
    The partitioner of torch.compile then recomputes the cheapest operators; at 0 all of them, from the block's input.
    It counts for blocks compiled afterwards, in all threads. Not for models with dropout: it takes random operators for
    recomputable ones (seen with torch 2.13's ``aot_eager_decomp_partition``: other masks in the backward pass).
    """
    usual = 0.0 if recompute else 1.0
    kept_attention.ask_to_keep(recompute and attention)
    if recompute and attention:
        share = kept_attention.SMALLEST
    set_for_all_threads(torch._functorch.config, "activation_memory_budget", usual if share is None else share)
