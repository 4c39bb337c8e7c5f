"""Finds which blocks of a class train the same layers: the others are compiled apart, in graphs of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from backend.base.errors import Refused
from backend.config.layer_patterns import included, sizes, trained_names
from backend.families.spec import FamilyFacts
from backend.plan.memory.parts import Parts, place_of, trained_layers

if TYPE_CHECKING:
    from backend.config.schema import Config

TrainedBlocks = Mapping[str, Sequence[Hashable]]
"""Block class -> of each block, in the order of its numbers, what is trained in it."""


def trained_blocks(cfg: Config, facts: FamilyFacts, parts: Parts | None) -> TrainedBlocks:
    """What a run of `cfg` trains in each block: layers, ranks and strengths. Empty where the model can't be read.

    facts: with the block classes that this model has (`FamilyFacts.narrowed`).
    """
    if parts is None:
        return {}
    if cfg.training.kind == "full":
        return _full_blocks(cfg, facts, parts)
    layers = trained_layers(parts.denoiser, included(cfg.network, facts), cfg.network.targets_exclude or ())
    try:
        size_of = sizes(list(layers), cfg.network, parts.denoiser.kernels)
    except Refused:
        # told where the layers are chosen
        return {}
    blocks: dict[str, dict[tuple[str, int], set[Hashable]]] = defaultdict(lambda: defaultdict(set))
    for name in parts.shapes:
        place = place_of(name, facts)
        if place is None:
            continue
        kind, stack, number, path = place
        trained = blocks[kind][stack, number]
        size = size_of.get(name.removesuffix(".weight"))
        if size is not None:
            trained.add((path.removesuffix(".weight"), size.rank, size.alpha))
    return {kind: [frozenset(each[key]) for key in sorted(each)] for kind, each in blocks.items()}


def _full_blocks(cfg: Config, facts: FamilyFacts, parts: Parts) -> TrainedBlocks:
    """The same of a run that trains the model's own weights: of each block, the paths of its trained parameters."""
    try:
        trained = set(trained_names(parts.shapes, cfg.network.targets_include, cfg.network.targets_exclude))
    except Refused:
        return {}
    blocks: dict[str, dict[tuple[str, int], set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in parts.shapes:
        place = place_of(name, facts)
        if place is not None:
            kind, stack, number, path = place
            blocks[kind][stack, number] |= {path} if name in trained else set()
    return {kind: [frozenset(each[key]) for key in sorted(each)] for kind, each in blocks.items()}


def graph_variants(cfg: Config, facts: FamilyFacts, trained: TrainedBlocks) -> list[tuple[bool, int]]:
    """Of each block class, whether it has text and image in one sequence, and how many graphs each shape needs.

    All blocks of a class share one, but for those with a backend of their own, and those in which other layers, or
    layers of other ranks, are trained.
    """
    if cfg.compile.compile_scope == "model":
        return [(False, 1)]
    return [(block.joint, len(_variants(cfg, block.name, trained.get(block.name)))) for block in facts.block_classes]


def _variants(cfg: Config, kind: str, trained: Sequence[Hashable] | None) -> set[Hashable]:
    """The backends of a class, each with what is trained under it; None is what is not known of a block."""
    general = cfg.compile.compile_backend
    blocks: list[Hashable] = list(trained or [None])
    backends: list[str | None] = [general] * len(blocks)
    beside: set[Hashable] = set()
    for row in cfg.compile.compile_blocks or ():
        name, _, numbers = row.blocks.partition(":")
        if name != kind:
            continue
        backend = (row.backend or general) if row.compile else None
        if not numbers:
            backends, beside = [backend] * len(blocks), set()
        elif trained is None:
            beside |= {(backend, None)} if backend else set()
        for number in _numbers(numbers) if trained is not None else ():
            if number < len(blocks):
                backends[number] = backend
    return {(backend, block) for backend, block in zip(backends, blocks, strict=True) if backend is not None} | beside


def _numbers(text: str) -> list[int]:
    """Block numbers of "0,2,5-8"; none of what is no number, which the settings' own check tells."""
    numbers: list[int] = []
    for piece in filter(None, text.split(",")):
        low, _, high = piece.partition("-")
        if low.strip().isdigit() and (high or low).strip().isdigit():
            numbers += range(int(low), int(high or low) + 1)
    return numbers
