"""Defines what the inference bench measures: settings of a preview, compiled or not, from a cold or a warm cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Start = Literal["eager", "cold", "warm"]

ALL_BLOCKS = "all"
"""Stands for the number of blocks that the model has."""

_OFF: Mapping[str, Any] = {"compile.compile": False}
_BLOCKS: Mapping[str, Any] = {"compile.compile": True, "compile.compile_scope": "blocks"}
# torch leaves checkpointed blocks out of a whole graph, and pictures need no checkpoints
_MODEL: Mapping[str, Any] = {
    "compile.compile": True,
    "compile.compile_scope": "model",
    "training.gradient_checkpointing": False,
}
_TUNED: Mapping[str, Any] = {**_BLOCKS, "compile.compile_mode": "max-autotune-no-cudagraphs"}
_OFFLOAD: Mapping[str, Any] = {"memory.blocks_to_swap": ALL_BLOCKS}
_NF4: Mapping[str, Any] = {"memory.base_quantization": "nf4", "memory.text_encoder_quantization": "nf4"}
_FP8: Mapping[str, Any] = {"memory.base_quantization": "fp8", "memory.base_compute": "fp8"}
# as a pipeline of diffusers attends, whatever else is installed
_OWN: Mapping[str, Any] = {"compile.attention": "sdpa"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Settings that are measured without and with compiled blocks."""

    title: str
    memory: Mapping[str, Any] = field(default_factory=dict)
    compiled: Mapping[str, Any] = field(default_factory=lambda: _BLOCKS)
    eager: bool = True
    """Whether it is measured without compiling too; one that differs in what is compiled alone need not be."""
    warm: bool = True
    """Whether it is measured from a warm cache too."""
    swaps: bool = False
    """Whether LoRAs of other ranks, alphas and layers are drawn in turn."""

    def settings(self, start: Start) -> dict[str, Any]:
        """Setting -> value of a process that begins so."""
        return {**self.memory, **(_OFF if start == "eager" else self.compiled)}

    @property
    def starts(self) -> tuple[Start, ...]:
        """The processes, in order: a warm one needs the cache of the cold one before it."""
        starts: tuple[tuple[Start, bool], ...] = (("eager", self.eager), ("cold", True), ("warm", self.warm))
        return tuple(start for start, is_measured in starts if is_measured)


SCENES: Mapping[str, Scene] = {
    "regional": Scene(title="Compiled block by block"),
    "sdpa": Scene(title="Block by block, torch's own attention", memory=_OWN, warm=False),
    "swaps": Scene(title="Block by block, LoRAs in turn", eager=False, warm=False, swaps=True),
    "whole": Scene(title="Compiled as a whole", compiled=_MODEL, eager=False),
    "tuned": Scene(title="Block by block, kernels tuned", compiled=_TUNED, eager=False, warm=False),
    "offload": Scene(title="CPU offload", memory=_OFFLOAD),
    "nf4": Scene(title="NF4", memory=_NF4),
    "nf4-offload": Scene(title="NF4 and CPU offload", memory={**_NF4, **_OFFLOAD}),
    "fp8": Scene(title="fp8 products", memory=_FP8),
}
"""By name. The eager half of the first is the plain pipeline, with which those without one of their own are compared.
"""

_FIRST: tuple[tuple[str, Start], ...] = (
    ("regional", "eager"),
    ("regional", "cold"),
    ("regional", "warm"),
    ("sdpa", "eager"),
    ("sdpa", "cold"),
    ("swaps", "cold"),
    ("whole", "cold"),
    ("tuned", "cold"),
)


def in_order(names: Collection[str], starts: Collection[str]) -> list[tuple[str, Start]]:
    """The measurements of these scenes and starts, the most telling first: time may end before the list does.

    A warm one always comes behind its cold one.
    """
    rest = [(name, start) for start in ("cold", "eager", "warm") for name in SCENES if start in SCENES[name].starts]
    ordered = dict.fromkeys([*_FIRST, *rest])
    return [(name, start) for name, start in ordered if name in names and start in starts]
