"""Bytes that a training step holds beside weights: what blocks keep for the backward pass, and what it works with.

The share that compiled blocks keep, and the working set, are fitted to an H100 (torch 2.11, FLUX's width, 4096 + 512
tokens); what an eager block keeps is counted from its layers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from backend.families.activations import BlockActivations, FamilyMemory, Stream
from backend.plan.memory.parts import Block, Denoiser

COMPILED = 0.81
"""What a compiled block keeps of what an eager one does: casts and norms are computed again."""

WORKING, WORKING_COMPILED = 0.15, 0.1
"""What the backward of one block holds in passing, as a share of what the eager block keeps."""

RECOMPUTED, RECOMPUTED_COMPILED = 0.03, 0.31
"""What a block's second forward holds beside what it keeps, as the same share; a compiled one frees less on its way."""

LEAST_BUDGET = 0.28
"""Share of a compiled block's activations that the smallest activation memory budget leaves; 0 leaves its inputs."""

_HEAD = 128
"""Features of an attention head, in the models that are usual."""

AROUND_RECOMPUTED = 0.25
"""What checkpointing leaves of what lies around the blocks: their inputs and a UNet's skips, counted at SDXL's full
size."""

FORWARD = 0.45
"""What the most a block holds in a forward without gradients is, as a share of what it keeps with gradients."""


@dataclass(frozen=True)
class Work:
    """What goes through the denoiser at once: rows, and tokens a row, padding included."""

    batch: int
    image: int
    text: int

    def tokens(self, stream: Stream, scale: int = 1) -> int:
        """Tokens of a stream, over all rows. scale: tokens of the block for each token of the picture."""
        image = self.image * scale
        each = {"image": image, "text": self.text, "joint": image + self.text, "row": 1}[stream]
        return self.batch * each


@dataclass(frozen=True)
class Format:
    """Bytes a number: of the arithmetic and of norms, which mixed precision computes in float32."""

    half: int = 2
    full: int = 4


def block_bytes(
    block: Block,
    facts: BlockActivations | None,
    work: Work,
    rank: int,
    trained: Collection[str],
    number: Format,
    decomposed: bool = False,
) -> int:
    """Bytes that autograd keeps of one eager block. trained: paths within the block that have a LoRA.

    decomposed: the LoRA is a DoRA, which keeps each output for the gradient of its length.
    """
    facts = facts or _usual(block)
    width = model_width(block, facts)
    total = 0.0
    more = [kept for pattern, kept in facts.normed if any(re.search(pattern, path) for path in block.norms)]
    for stream, kept in (held for each in (facts.kept, *more) for held in each.items()):
        total += work.tokens(stream, facts.scale) * width * (kept.full * number.full + kept.half * number.half)
    for path, (inner, outer) in block.linears.items():
        tokens = work.tokens(_stream(facts, path), facts.scale)
        if _any(facts.outputs, path):
            total += tokens * outer * number.half
        if path in trained:
            shared = _any(facts.same, path) or (_any(facts.shared, path) and work.batch == 1)
            total += tokens * ((0 if shared else inner) + rank + (outer if decomposed else 0)) * number.half
    return int(total)


def border_bytes(block: Block, facts: BlockActivations | None, work: Work, number: Format) -> int:
    """Bytes of a block's input, which checkpointing keeps."""
    facts = facts or _usual(block)
    return work.tokens("joint", facts.scale) * model_width(block, facts) * number.half


def model_width(block: Block, facts: BlockActivations) -> int:
    """Features of the stream that the block works on."""
    for path, (inner, _) in block.linears.items():
        if path.endswith(facts.probe):
            return inner
    return max((min(size) for size in block.linears.values()), default=0)


@dataclass(frozen=True)
class Held:
    """Bytes of a training step's activations."""

    kept: int
    """Until the backward pass reaches them."""
    passing: int
    """At the worst moment."""
    host: int = 0
    """Pinned memory of the machine, for inputs of blocks that wait there."""

    @property
    def total(self) -> int:
        """Both together, on the GPU."""
        return self.kept + self.passing

    def beside(self, gradients: int) -> int:
        """What is on the GPU beside `gradients`, bytes of a whole set: a pass makes them while it lets go of what was
        kept, so that the two are never there in full at one time."""
        return self.passing + max(0, self.kept - gradients)


@dataclass(frozen=True)
class Way:
    """How the blocks are run."""

    compiled: bool
    checkpointing: str = "block"
    """off, block, offload (inputs on the host), selective, graph (within the compiled block's backward pass), or
    attention (as graph or block, with attention's results kept)."""
    budget: float = 1.0
    """Share of its activations that a compiled block may keep."""


def training_bytes(
    denoiser: Denoiser,
    memory: FamilyMemory | None,
    work: Work,
    rank: int,
    trained: Mapping[str, Collection[str]],
    way: Way,
    number: Format,
    convolutions: int = 0,
    decomposed: bool = False,
) -> Held:
    """Activations of a step over all blocks. trained: block class -> paths within a block that have a LoRA.

    convolutions: numbers a token, as `convolutions_kept` counts them. decomposed: as in `block_bytes`.
    """
    facts = {each.block: each for each in memory.blocks} if memory else {}
    share = COMPILED * (LEAST_BUDGET + (1 - LEAST_BUDGET) * way.budget) if way.compiled else 1.0
    kept = largest = borders = pinned = 0
    sizes: dict[tuple[str, int], int] = {}
    for index, block in enumerate(denoiser.blocks):
        key = (block.kind, block.weights)
        if key not in sizes:
            paths = trained.get(block.kind, ())
            sizes[key] = block_bytes(block, facts.get(block.kind), work, rank, paths, number, decomposed)
        eager = sizes[key]
        largest = max(largest, eager)
        border = border_bytes(block, facts.get(block.kind), work, number)
        if _recomputed(way, index):
            borders += border
            if way.checkpointing == "attention":
                # as large as the input, and a float32 number a token and head
                kept += border + border // (_HEAD * number.half // 4)
            # torch's pinned memory comes in powers of two
            pinned += 1 << (border - 1).bit_length()
        else:
            kept += int(eager * share)
    around = work.tokens("image") * (_around(denoiser, memory, number) + convolutions * number.half)
    kept += around if way.checkpointing == "off" else int(around * AROUND_RECOMPUTED)
    kept += int(work.tokens("image") * _given(denoiser, memory) * number.half)
    working = int(largest * (WORKING_COMPILED if way.compiled else WORKING))
    if not borders:
        return Held(kept, working)
    again = COMPILED + RECOMPUTED_COMPILED if way.compiled else 1 + RECOMPUTED
    passing = working + int(largest * again)
    if way.checkpointing == "offload":
        # two inputs are on the GPU while they are on their way
        return Held(kept + 2 * borders // max(1, len(denoiser.blocks)), passing, pinned)
    return Held(kept + borders, passing)


def _around(denoiser: Denoiser, memory: FamilyMemory | None, number: Format) -> int:
    """Bytes a token of the picture that layers outside of the blocks keep."""
    if memory is None:
        return 0
    width = next((model_width(block, facts) for facts in memory.blocks for block in denoiser.blocks), 0)
    return memory.around + int(memory.around_full * width * number.full)


def _given(denoiser: Denoiser, memory: FamilyMemory | None) -> float:
    """Numbers a token of the picture that all blocks are given."""
    if memory is None or not memory.given_half:
        return 0.0
    width = next((model_width(block, facts) for facts in memory.blocks for block in denoiser.blocks), 0)
    return memory.given_half * width


def _recomputed(way: Way, index: int) -> bool:
    """Whether the block of this number keeps its input alone."""
    if way.checkpointing in ("off", "graph"):
        return way.compiled and way.budget == 0
    return way.checkpointing != "selective" or index % 2 == 0


def convolutions_kept(
    denoiser: Denoiser, memory: FamilyMemory | None, ranks: Mapping[str, int], decomposed: bool = False
) -> int:
    """Numbers a token of the picture that convolutions with a LoRA keep: their inputs, what A makes of them, and of a
    DoRA their outputs.

    A frozen convolution keeps nothing but its weight. ranks: of the trained layers, of which those of one pixel are
    counted in `FamilyMemory.around`.
    """
    kept = 0
    for path, cells in denoiser.kernels.items():
        if path in ranks:
            places = memory.resolutions if memory else ()
            scale = next((scale for pattern, scale in places if re.match(pattern, path)), 1)
            inner, outer = denoiser.layers[path]
            kept += scale * (inner // cells + ranks[path] + (outer if decomposed else 0))
    return kept


def forward_bytes(denoiser: Denoiser, memory: FamilyMemory | None, work: Work, number: Format, compiled: bool) -> int:
    """The most that a forward without gradients holds beside weights."""
    facts = {each.block: each for each in memory.blocks} if memory else {}
    largest = {
        (block.kind, block.weights): block_bytes(block, facts.get(block.kind), work, 0, (), number)
        for block in denoiser.blocks
    }
    return int(max(largest.values(), default=0) * FORWARD * (COMPILED if compiled else 1.0))


def _stream(facts: BlockActivations, path: str) -> Stream:
    for pattern, stream in facts.others:
        if re.search(pattern, path):
            return stream
    return facts.stream


def _any(patterns: Collection[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)


def _usual(block: Block) -> BlockActivations:
    """What a block of attention and feed-forward usually keeps, for a family that says nothing of its own."""
    from backend.families.activations import Kept

    widest = max((outer for _, outer in block.linears.values()), default=0)
    grown = tuple(f"^{re.escape(path)}$" for path, (_, outer) in block.linears.items() if outer == widest)
    return BlockActivations(block.kind, "to_q", kept={"joint": Kept(full=4, half=4)}, outputs=grown[:1])
