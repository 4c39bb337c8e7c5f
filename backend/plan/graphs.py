"""Counts the graphs that the shapes of a run need: dynamo's own bookkeeping, simulated without torch.

Every shape that reaches a compiled block is checked against the graphs there are; one that fits none makes a new graph.
The blocks of a class share their code, so the count is per class; training and no-grad calls never share a graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from backend.config.family_defaults import ShapeMode
from backend.dataset.items import count_of

Dynamic = Literal["auto", "true", "false"]

# torch's own limit, which is never lowered; and room above the plan: a graph too many is an alarm, not a fall to eager.
TORCH_LIMIT = 8
SPARE_GRAPHS = 4

_DYNAMIC = -1


@dataclass(frozen=True, order=True)
class Shape:
    """What a compiled block sees: padded image and text tokens, and rows."""

    image_tokens: int
    text_tokens: int
    batch: int

    @property
    def joined(self) -> Shape:
        """The same, as a block sees it that has text and image in one sequence."""
        return Shape(self.image_tokens + self.text_tokens, 1, self.batch)

    def words(self) -> str:
        """`4096 image + 512 text tokens x 2`."""
        return f"{self.image_tokens} image + {self.text_tokens} text tokens x {self.batch}"


@dataclass
class GraphCounter:
    """The graphs of one block class, counted as shapes come in.

    mode, dynamic: how it is compiled; the modes exact_buckets (fixed sizes) and dynamic (token axes open) rule over
    `dynamic`, which torch gets in static and off. With "auto" a size that changes is open in the next graph, as torch's
    automatic dynamic shapes have it. A size of 1 is never open: torch specialises it.
    """

    mode: ShapeMode
    dynamic: Dynamic = "auto"
    graphs: list[tuple[bool, tuple[int, int, int]]] = field(default_factory=list)
    _seen: list[int | None] = field(default_factory=lambda: [None, None, None])

    def __post_init__(self) -> None:
        if self.mode == "exact_buckets":
            self.dynamic = "false"
        elif self.mode == "dynamic":
            self.dynamic = "auto"
            self._seen = [_DYNAMIC, _DYNAMIC, None]
        if self.dynamic == "true":
            self._seen = [_DYNAMIC, _DYNAMIC, _DYNAMIC]

    def call(self, shape: Shape, training: bool) -> bool:
        """Count a call; True when it costs a new graph."""
        sizes = (shape.image_tokens, shape.text_tokens, shape.batch)
        if any(grad == training and _fits(held, sizes) for grad, held in self.graphs):
            return False
        if self.dynamic != "false":
            for axis, size in enumerate(sizes):
                known = self._seen[axis]
                self._seen[axis] = size if known is None or known == size else _DYNAMIC
        open_axes = [known == _DYNAMIC and self.dynamic != "false" for known in self._seen]
        held = tuple(_DYNAMIC if is_open and size > 1 else size for is_open, size in zip(open_axes, sizes, strict=True))
        self.graphs.append((training, (held[0], held[1], held[2])))
        return True

    def count(self, training: bool) -> int:
        """Graphs of the training calls, or of those without gradient."""
        return sum(grad == training for grad, _ in self.graphs)


@dataclass(frozen=True)
class GraphPlan:
    """The graphs of one shape mode: its shapes by what they serve, and the graphs a block class needs for them.

    classes: block classes that are compiled, each counted as often as its blocks need graphs of their own for one
    shape, by backend or by what is trained in them. variants: the most of these in one class. unpadded: how many
    different shapes there would be without padding. shared: graphs less, in classes where shapes of one joint length
    are one. asked: graphs more, in all and without gradient in a class, once a person asks for samples in a run that
    draws none by itself.
    """

    training: tuple[Shape, ...]
    validation: tuple[Shape, ...]
    sampling: tuple[Shape, ...]
    training_graphs: int
    no_grad_graphs: int
    classes: int
    variants: int = 1
    unpadded: int = 0
    shared: int = 0
    asked: tuple[int, int] = (0, 0)

    @property
    def per_class(self) -> int:
        """Graphs of each block class and variant of its blocks."""
        return self.training_graphs + self.no_grad_graphs

    @property
    def total(self) -> int:
        """Graphs of the whole run; what telemetry will count up to the end of the warm-up."""
        return self.per_class * self.classes - self.shared

    @property
    def recompile_limit(self) -> int:
        """The recompile limit a code object needs: all graphs of its class, and some room."""
        return max(TORCH_LIMIT, (self.per_class + self.asked[1]) * self.variants + SPARE_GRAPHS)

    def words(self) -> str:
        """`23 shapes -> 2 graphs (1 training + 1 without gradient) x 2 block classes = 4`."""
        shapes = self.unpadded or len({*self.training, *self.validation, *self.sampling})
        parts = f"{self.training_graphs} training + {self.no_grad_graphs} without gradient"
        classes = "1 block class" if self.classes == 1 else f"{self.classes} block classes"
        less = f" - {self.shared} that equal lengths share" if self.shared else ""
        return (
            f"{count_of(shapes, 'shape')} -> {count_of(self.per_class, 'graph')} ({parts}) x {classes}{less} = "
            f"{self.total}"
        )


def count_graphs(
    mode: ShapeMode,
    dynamic: Dynamic,
    at_start: Iterable[Shape],
    training: Iterable[Shape],
    later: Iterable[Shape],
) -> tuple[int, int]:
    """(training graphs, no-grad graphs) of a block class; each argument lists shapes in the order they come.

    at_start: no-grad shapes before the first step (samples and validation). later: those between and after steps.
    """
    counter = GraphCounter(mode, dynamic)
    for shape in at_start:
        counter.call(shape, training=False)
    for shape in training:
        counter.call(shape, training=True)
    for shape in later:
        counter.call(shape, training=False)
    return counter.count(True), counter.count(False)


def _fits(held: tuple[int, int, int], sizes: tuple[int, int, int]) -> bool:
    return all(h == size or (h == _DYNAMIC and size > 1) for h, size in zip(held, sizes, strict=True))
