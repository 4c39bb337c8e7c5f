"""Small stacks of equal blocks, for what does not need FLUX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)).relu()


class Breaking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x


class BreakingBlock(Block):
    """One graph break, in a layer that it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks = Breaking()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.breaks(self.norm(x)))


class Stack(nn.Module):
    """Two classes of blocks over (B, S, W)."""

    def __init__(self, first: type[nn.Module] = Block, count: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.firsts = nn.ModuleList(first() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.firsts:
            x = block(x)
        return x

    def core(self, x: Tensor) -> Tensor:
        for block in self.firsts:
            x = block(x)
        return x


class Counting:
    """A backend that counts the graphs it is handed, and runs them as they are."""

    __name__ = "counting"

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward


def lists(stack: Stack) -> dict[str, nn.ModuleList]:
    return {"first": stack.firsts}
