"""Keeps attention's results while the rest of a block is computed again in the backward pass.

Attention of n tokens to each other costs n^2, and its result n: of a clip's block it is the most time for the least
memory. Eager blocks choose by operator as they run; compiled ones have it chosen in their joint graph, by torch's
partitioner. Both keep what attends to as many tokens as it has, and nothing of a stream's attention to a short text.
"""

from __future__ import annotations

import functools
from typing import Any

import torch._functorch.config
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomKnapsackSolver
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from backend.compile.torch_config import set_for_all_threads

_NAMES = ("attention", "attn", "_sink_forward", "_segments_forward")
"""In the names of operators that compute attention: torch's, and those of `backend.shapes.flash_kernels`."""


SMALLEST = 1e-9
"""The activation budget at which torch asks a solver; at 0 it keeps a block's inputs. Where all that it would keep is
smaller than weights that the backward pass has no use for, as with small pictures, it keeps that and asks nobody."""


def is_attention(operator: Any) -> bool:
    """Whether an operator (an `OpOverload`) computes the forward pass of attention."""
    name = getattr(operator, "__name__", str(operator)).partition(".")[0]
    return "backward" not in name and any(part in name for part in _NAMES)


def _among_themselves(query: Any, key: Any) -> bool:
    """Whether as many tokens are asked as answer; by the shapes' text, since symbols must not be compared."""
    return str(tuple(query.shape)) == str(tuple(key.shape))


def _policy(_: Any, function: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    kept = is_attention(function) and isinstance(arguments[1], Tensor) and _among_themselves(*arguments[:2])
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
"""The `context_fn` of torch's checkpoint."""


class KeepAttention(CustomKnapsackSolver):
    """Has the partitioner keep attention, and compute all else again from a block's inputs.

    Called with the nodes that torch finds costly to compute again; gives the places of those to keep, and of the
    others. It knows no cost of operators that are not torch's own: these are marked in the graph. Not all is marked, as
    torch's own selective checkpointing does: random operators, which attention to text is to torch, would then have
    their state of the generator kept and set.
    """

    def __call__(
        self, memory: Any, joint_graph: fx.Graph, max_memory: float, node_info: Any, nodes: list[fx.Node]
    ) -> tuple[list[int], list[int]]:
        attention = {node for node in joint_graph.nodes if node_info.is_required_fw(node) and _attends(node)}
        for node in attention:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        kept = [place for place, node in enumerate(nodes) if node in attention]
        return kept, [place for place in range(len(nodes)) if place not in kept]

    def uuid(self) -> str:
        """What tells compiled graphs of this choice apart in torch's cache."""
        return f"monotile keeps attention 1 {_NAMES}"


def _attends(node: fx.Node) -> bool:
    """Whether a node is attention among tokens themselves."""
    if node.op != "call_function" or not is_attention(node.target):
        return False
    query, key = (argument.meta["val"] for argument in node.args[:2])
    return _among_themselves(query, key)


def ask_to_keep(on: bool) -> None:
    """Have blocks that are compiled from now on keep attention, in all threads; or undo it. It needs SMALLEST."""
    solver = KeepAttention() if on else "dp"
    set_for_all_threads(torch._functorch.config, "activation_memory_budget_solver", solver)
