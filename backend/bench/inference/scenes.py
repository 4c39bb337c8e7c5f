"""Defines what the inference bench measures: settings of a preview, compiled or not, from a cold or a warm cache."""

from __future__ import annotations

from collections.abc import Mapping
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
_OFFLOAD: Mapping[str, Any] = {"memory.blocks_to_swap": ALL_BLOCKS}
_NF4: Mapping[str, Any] = {"memory.base_quantization": "nf4", "memory.text_encoder_quantization": "nf4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Settings that are measured without and with compiled blocks."""

    title: str
    memory: Mapping[str, Any] = field(default_factory=dict)
    compiled: Mapping[str, Any] = field(default_factory=lambda: _BLOCKS)
    eager: bool = True
    """Whether it is measured without compiling too; one that differs in what is compiled alone need not be."""

    def settings(self, start: Start) -> dict[str, Any]:
        """Setting -> value of a process that begins so."""
        return {**self.memory, **(_OFF if start == "eager" else self.compiled)}

    @property
    def starts(self) -> tuple[Start, ...]:
        """The processes, in order: a warm one needs the cache of the cold one before it."""
        return ("eager", "cold", "warm") if self.eager else ("cold", "warm")


SCENES: Mapping[str, Scene] = {
    "regional": Scene(title="Compiled block by block"),
    "whole": Scene(title="Compiled as a whole", compiled=_MODEL, eager=False),
    "offload": Scene(title="CPU offload", memory=_OFFLOAD),
    "nf4": Scene(title="NF4", memory=_NF4),
    "nf4-offload": Scene(title="NF4 and CPU offload", memory={**_NF4, **_OFFLOAD}),
}
"""By name. The eager half of the first is the plain pipeline, with which the second is compared too."""
