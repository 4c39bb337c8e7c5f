"""Reads what a base model's parts are made of from the headers of their files: shapes, sizes, layers of blocks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from backend.families.files.base_model import BaseModelFiles
from backend.families.files.parts import Part
from backend.families.spec import FamilyFacts

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor name -> shape."""

_TEXTS = ("text_encoder", "text_encoder_2", "text_encoder_3")
_FIRST_OF_VAE = ("encoder.conv_in.weight", "encoder.conv1.weight")
_USUAL_VAE_WIDTH = 128


@dataclass(frozen=True)
class Block:
    """One block."""

    kind: str
    linears: Mapping[str, tuple[int, int]]
    """Path within the block -> (in, out) features."""
    other: int
    """Numbers in everything else."""
    norms: frozenset[str] = frozenset()
    """Paths of the weights that are no matrices."""

    @property
    def weights(self) -> int:
        """Numbers in the weights of its linear layers."""
        return sum(inner * outer for inner, outer in self.linears.values())


@dataclass(frozen=True)
class Denoiser:
    """The denoiser by blocks."""

    blocks: tuple[Block, ...]
    """In the order in which they run."""
    outside: int
    """Numbers in no block."""
    largest: int
    """Numbers in the largest tensor."""
    layers: Mapping[str, tuple[int, int]]
    """Layer that may take a LoRA -> (in, out) features; in of a convolution counts all cells of its kernel."""
    places: Mapping[str, tuple[str, str]]
    """Such a layer in a block -> block class and path within the block."""
    kernels: Mapping[str, int] = field(default_factory=dict)
    """Convolution larger than one pixel -> cells of its kernel."""

    @property
    def count(self) -> int:
        """Numbers in all its tensors."""
        return self.outside + sum(block.weights + block.other for block in self.blocks)


@dataclass(frozen=True)
class Parts:
    """A base model's parts by size."""

    denoiser: Denoiser
    shapes: Shapes
    texts: Mapping[str, Shapes]
    vae: int
    """Numbers in the VAE."""
    vae_width: int
    """Channels of its first convolution."""


def read_parts(facts: FamilyFacts, base: BaseModelFiles) -> Parts | None:
    """The parts of the base model, from file headers; None where the denoiser's can't be read."""
    shapes = _shapes(base, facts.denoiser)
    if not shapes:
        return None
    texts = {part.name: _shapes(base, part) for part in facts.parts if part.weights and part.name in _TEXTS}
    pixels = _shapes(base, next((part for part in facts.parts if part.name == "vae"), None))
    first = next((pixels[name] for name in _FIRST_OF_VAE if name in pixels), (_USUAL_VAE_WIDTH,))
    return Parts(denoiser_of(shapes, facts.narrowed(base)), shapes, texts, numbers(pixels.values()), first[0])


def denoiser_of(shapes: Shapes, facts: FamilyFacts) -> Denoiser:
    """The blocks among these tensors."""
    linears: dict[tuple[str, str, int], dict[str, tuple[int, int]]] = defaultdict(dict)
    others: dict[tuple[str, str, int], int] = defaultdict(int)
    norms: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    outside, layers, places, kernels = 0, {}, {}, {}
    for name, shape in shapes.items():
        place = place_of(name, facts)
        linear = len(shape) == 2 and name.endswith(".weight")
        if linear or (len(shape) == 4 and name.endswith(".weight")):
            cells = math.prod(shape[2:])
            layers[name.removesuffix(".weight")] = (shape[1] * cells, shape[0])
            if cells > 1:
                kernels[name.removesuffix(".weight")] = cells
        if place is None:
            outside += math.prod(shape)
            continue
        kind, attribute, number, path = place
        key = (kind, attribute, number)
        if name.removesuffix(".weight") in layers:
            places[name.removesuffix(".weight")] = kind, path.removesuffix(".weight")
        if linear:
            linears[key][path.removesuffix(".weight")] = (shape[1], shape[0])
        else:
            others[key] += math.prod(shape)
            norms[key] |= {path} if path.endswith(".weight") else set()
    runs = _running_order(facts)
    keys = sorted(linears, key=lambda key: (runs[key[0]], _by_value(key[1]), key[2]))
    blocks = tuple(Block(key[0], linears[key], others[key], frozenset(norms[key])) for key in keys)
    largest = max((math.prod(s) for s in shapes.values()), default=0)
    return Denoiser(blocks, outside, largest, layers, places, kernels)


def _running_order(facts: FamilyFacts) -> dict[str, int]:
    """When each block class runs, beside others of the same number in between.

    Stacks run one after the other. Classes that share lists, told apart by expressions, run as the lists' paths are
    sorted: a UNet's down, mid and up blocks, SD3's kinds of blocks in one list.
    """
    return {each.name: 0 if "\\" in each.attribute else at for at, each in enumerate(facts.block_classes)}


def _by_value(path: str) -> tuple[tuple[int, str], ...]:
    """A module path that sorts by the value of its numbers: the tenth block behind the ninth."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in path.split("."))


def trained_layers(denoiser: Denoiser, include: Sequence[str], exclude: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Layers that a LoRA goes into -> (in, out) features, chosen as `backend.lora.inject.find_targets` does."""
    names = _matching(tuple(denoiser.layers), tuple(include), tuple(exclude or ()))
    return {name: denoiser.layers[name] for name in names}


@lru_cache(maxsize=16)
def _matching(names: tuple[str, ...], include: tuple[str, ...], exclude: tuple[str, ...]) -> tuple[str, ...]:
    """Names that a pattern includes and none excludes; the search for a change that fits asks the same many times."""

    def fits(name: str, patterns: Iterable[str]) -> bool:
        return any(name == p or name.endswith(f".{p}") or _whole(p, name) for p in patterns)

    return tuple(name for name in names if fits(name, include) and not fits(name, exclude))


def numbers(shapes: Iterable[tuple[int, ...]]) -> int:
    """Numbers in tensors of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def _whole(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        # the schema refuses it, beside the field
        return False


def place_of(name: str, facts: FamilyFacts) -> tuple[str, str, int, str] | None:
    """Block class, list, number and path within the block of a tensor; None outside of all blocks."""
    for block in facts.block_classes:
        lists = block.attribute if "\\" in block.attribute else re.escape(block.attribute)
        match = re.match(rf"({lists})\.(\d+)\.(.+)$", name)
        if match:
            return block.name, match[1], int(match[2]), match[3]
    return None


def _shapes(base: BaseModelFiles, part: Part | None) -> dict[str, tuple[int, ...]]:
    return {} if part is None else {name: shape for name, (_, shape) in base.tensors(part).items()}
