"""Computes how much memory a run will need, by stage and part, before anything is loaded: without torch.

What the figures come from: weights from the headers of the model's files, optimizer state by optimizer, activations
from the layers of the blocks (`backend.plan.memory.activations`). At its end a run compares its estimate with its peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from backend.base.errors import Refused
from backend.config.layer_patterns import factor_shapes, included, sizes
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.families.table import family as family_named
from backend.plan.memory import ram as memory_ram
from backend.plan.memory.activations import Held, Work, convolutions_kept, forward_bytes, training_bytes
from backend.plan.memory.estimate_result import ROOMY, TIGHT, Estimate, Stage, room_of
from backend.plan.memory.machine import Gpu
from backend.plan.memory.optimizer_bytes import trained_bytes
from backend.plan.memory.parts import Parts, read_parts, trained_layers
from backend.plan.memory.settings import MemorySettings, memory_settings
from backend.plan.memory.swap import too_many
from backend.plan.memory.text import trained_text
from backend.plan.memory.trained import Trained, trained_in_full
from backend.plan.memory.weight_bytes import total_bytes
from backend.plan.memory.work import RunWork

if TYPE_CHECKING:
    from backend.config.schema import Config

WORKSPACE = 100_000_000
"""Bytes of cuBLAS and cuDNN workspaces, inputs, embeddings and other small things in torch's allocator."""

VAE_WORKSPACE = 1.3
"""What convolutions' workspaces add to the VAE's tensors."""

RECORDED = 1.7
"""Memory of recordings over what a plain pass holds: sizes share it, but pieces that one leaves are of no use to the
next, and the driver keeps each kernel's arguments. Fitted to SDXL's peaks with and without recordings on an H200."""

RECORDING_WORKSPACES = 4 * 32 * 2**20
"""Bytes of cuBLAS workspaces of the two streams on which passes are recorded: one for the forward and one for the
backward thread of each, of the size that torch takes on an H100 and later."""

TILE_PX = 512
# A VAE that works on this many frames of a clip at a time has tiles of half that side.
_MANY_FRAMES = 8
"""Side of the tiles that a tiled VAE works on."""

TEXT_WORKING = 6
"""Widest layers' results that a text encoder holds at once."""


def estimate(
    cfg: Config,
    work: RunWork,
    gpu: Gpu | None,
    *,
    parts: Parts | None = None,
    on_gpu: bool = True,
    ram_room: int | None = None,
) -> Estimate | None:
    """The memory of a run of `cfg` that does `work`; None where the base model can't be read.

    parts: of the base model, where they were read already. on_gpu: False for a run on the CPU, whose RAM holds all.
    ram_room: RAM of the machine that it runs on, where that is known.
    """
    family = family_named(cfg.model.family)
    parts = parts or read_parts(family, BaseModelFiles.of(cfg.model))
    if parts is None:
        return None
    settings = memory_settings(cfg, on_gpu)
    limit = int(settings.limit_gb * 2**30) if settings.limit_gb else None
    room = room_of(gpu, limit)

    @cache
    def stages_of(settings: MemorySettings) -> list[Stage]:
        """Worked out once for each way of settings: most are asked for again while auto is resolved."""
        return _stages(cfg, family, parts, settings, work)

    settings = by_turns(cfg, settings, room, stages_of)
    stages = stages_of(settings)
    if settings.may_record and room is not None:
        recorded = stages_of(replace(settings, recorded=True))
        if max(stage.total for stage in recorded) <= TIGHT * room:
            settings, stages = replace(settings, recorded=True), recorded
    if settings.may_copy and room is not None:
        copied = stages_of(replace(settings, copies=True))
        if max(stage.total for stage in copied) <= TIGHT * room:
            settings, stages = replace(settings, copies=True), copied
    if settings.may_keep_attention and room is not None:
        kept = stages_of(settings.keeping_attention())
        if max(stage.total for stage in kept) <= ROOMY * room:
            settings, stages = settings.keeping_attention(), kept
    ram = memory_ram.needed(parts, settings, stages, on_gpu)
    rough = family.memory is None
    wrong = too_many(cfg.memory.blocks_to_swap, len(parts.denoiser.blocks))
    problems = () if wrong is None else (wrong,)
    return Estimate(tuple(stages), ram, gpu, limit, rough, settings, on_gpu, ram_room, problems)


def by_turns(
    cfg: Config, settings: MemorySettings, room: int | None, stages: Callable[[MemorySettings], list[Stage]]
) -> MemorySettings:
    """Resolve auto: take turns, then tile, only where a stage of the VAE would not fit otherwise.

    Weights that are trained stay on the GPU, so that a run of full fine-tuning has no turns.
    """

    def short(stage: str, way: MemorySettings) -> bool:
        estimated = next((s for s in stages(way) if s.name == stage), None)
        return room is not None and estimated is not None and estimated.total > TIGHT * room

    memory = cfg.memory
    if memory.vae_tiling == "auto" and short("encode_pictures", settings):
        settings = replace(settings, tiled_encode=True)
    if memory.vae_tiling == "auto" and short("decode_samples", replace(settings, turns=True)):
        settings = replace(settings, tiled_decode=True)
    if memory.offload_by_turns == "auto" and not settings.full and short("decode_samples", settings):
        settings = replace(settings, turns=True)
    return settings


def _stages(cfg: Config, family: FamilyFacts, parts: Parts, settings: MemorySettings, work: RunWork) -> list[Stage]:
    if settings.full_width is not None:
        trained = trained_in_full(cfg, family, parts, settings, work.training)
    else:
        trained = _trained(cfg, family, parts, settings, work)
    weights = denoiser_weights(parts, settings) | trained.text.resident
    # of a clip, what the VAE works on at a time
    frames = 1 if family.video is None else family.video.vae_frames or 1
    encoded = work.largest_picture * work.encodes_pictures
    encodes_text = work.encodes_text and not trained.text.lora
    stages = [
        Stage("encode_text", text_bytes(parts, settings, work.training.text) if encodes_text else {}),
        Stage("encode_pictures", vae_bytes(parts, settings, encoded, False, frames)),
        _training(family, parts, settings, work.training, weights, trained),
    ]
    if work.validation is not None:
        stages.append(_forward("validate", family, parts, settings, work.validation, weights, trained))
    if work.sampling is not None:
        drawing = _forward("sample", family, parts, settings, work.sampling, weights, trained)
        decode = vae_bytes(parts, settings, work.sample_pixels, True, frames, whole=work.sample_result)
        beside = {} if settings.turns and not settings.full else dict(drawing.parts) | {"activations": 0}
        kept = _of_training(trained, between=True) | trained.text.resident
        stages += [drawing, Stage("decode_samples", beside | decode | kept)]
    if settings.recorded:
        recordings = _recordings(stages[2], trained)
        stages[2:] = [replace(stage, parts={**stage.parts, "recordings": recordings}) for stage in stages[2:]]
    return [stage for stage in stages if stage.allocated]


def _recordings(training: Stage, trained: Trained) -> int:
    """Bytes that recorded passes keep: what a pass holds, the gradients that it writes and that are summed up, and
    workspaces of streams of their own.

    Kept beside it: a shape's first pass is a plain one, and so are validation and samples.
    """
    gradients = trained.bytes["gradients"]
    return int(RECORDED * (training.parts["activations"] + gradients)) + 2 * gradients + RECORDING_WORKSPACES


def _trained(cfg: Config, family: FamilyFacts, parts: Parts, settings: MemorySettings, work: RunWork) -> Trained:
    layers = trained_layers(parts.denoiser, included(cfg.network, family), cfg.network.targets_exclude or ())
    ranks = _ranks(layers, parts.denoiser.kernels, cfg)
    text = trained_text(cfg, family, parts, settings, work.training)
    shapes = _lora_shapes(layers, ranks, cfg) + text.lora
    optimizer, ema = cfg.optimizer, cfg.training.ema
    total = trained_bytes(optimizer.optimizer, shapes, optimizer.optimizer_args, settings.lora_dtype, ema)
    by_class: dict[str, set[str]] = defaultdict(set)
    for name in layers:
        if name in parts.denoiser.places:
            kind, path = parts.denoiser.places[name]
            by_class[kind].add(path)
    frozen = {name: frozenset(paths) for name, paths in by_class.items()}
    decomposed = cfg.network.network_type == "dora"
    around = convolutions_kept(parts.denoiser, family.memory, ranks, decomposed)
    count = sum(rows * columns for rows, columns in shapes)
    aside = total["weights"] + total["optimizer"] + total["ema"] if settings.experts else 0
    return Trained(total, frozen, count, text, around, decomposed, aside)


def _ranks(layers: Mapping[str, tuple[int, int]], kernels: Collection[str], cfg: Config) -> dict[str, int]:
    """Rank of each trained layer."""
    try:
        return {path: size.rank for path, size in sizes(list(layers), cfg.network, kernels).items()}
    except Refused:
        # said where the layers are chosen
        return dict.fromkeys(layers, cfg.network.network_dim)


def _lora_shapes(layers: Mapping[str, tuple[int, int]], ranks: Mapping[str, int], cfg: Config) -> list[tuple[int, int]]:
    """Shapes of all that is trained, by each layer's own rank."""
    network = cfg.network
    return [
        shape
        for path, size in layers.items()
        for shape in factor_shapes(network.network_type, *size, ranks[path], network.lokr_factor).values()
    ]


def _of_training(trained: Trained, between: bool = False) -> dict[str, int]:
    """What of the LoRA stays on the GPU, in a step or between two, where its mean takes its place and it is kept."""
    mean = {"ema": trained.bytes["ema"] * (2 if between else 1)} if trained.bytes["ema"] else {}
    aside = {"other_expert": trained.aside} if trained.aside else {}
    return {"lora": trained.bytes["weights"], "optimizer": trained.bytes["optimizer"]} | mean | aside


def denoiser_weights(parts: Parts, settings: MemorySettings) -> dict[str, int]:
    """Bytes of the denoiser on the GPU: resident weights, their copies, and the ring that swapped ones pass through."""
    swapped, ring = settings.swap(parts)
    resident = _whole(parts, settings) - swapped
    if not settings.copies:
        return {"weights": resident, "swap_ring": ring}
    plain = replace(settings, copies=False)
    weights = _whole(parts, plain) - plain.swap(parts)[0]
    return {"weights": weights, "weight_copies": resident - weights, "swap_ring": ring}


def _whole(parts: Parts, settings: MemorySettings) -> int:
    return total_bytes(parts.shapes, settings.base_format, settings.denoiser_width, settings.copies)


def _training(
    family: FamilyFacts,
    parts: Parts,
    settings: MemorySettings,
    work: Work,
    weights: Mapping[str, int],
    trained: Trained,
) -> Stage:
    held = _held(family, parts, settings, work, trained)
    # Gradients that are summed up over several passes are there from the first on.
    beside = held.total if settings.accumulates else held.beside(trained.bytes["gradients"])
    # Autocast's 16-bit copies of the LoRA are kept for the backward, unless blocks are computed again.
    copies = 2 * trained.count if settings.autocast and settings.way.checkpointing == "off" else 0
    moved = 0
    if settings.full_width is not None:
        # of float32 weights an eager forward keeps them to its end, whatever is computed again
        eager = parts.denoiser.outside if settings.way.compiled else parts.denoiser.count
        copies = 2 * min(eager, trained.count) if settings.autocast and settings.full_width > 2 else 0
        moved = settings.step_copies * 4 * parts.denoiser.largest
    return Stage(
        "train",
        {
            **weights,
            **_of_training(trained),
            "gradients": trained.bytes["gradients"],
            "activations": beside + copies + trained.text.activations,
            "workspace": WORKSPACE + moved,
        },
        {"activations": held.host} if held.host else {},
    )


def _held(family: FamilyFacts, parts: Parts, settings: MemorySettings, work: Work, trained: Trained) -> Held:
    return training_bytes(
        parts.denoiser,
        family.memory,
        work,
        settings.rank,
        trained.layers,
        settings.way,
        settings.number,
        trained.around,
        trained.decomposed,
    )


def _forward(
    name: str,
    family: FamilyFacts,
    parts: Parts,
    settings: MemorySettings,
    work: Work,
    weights: Mapping[str, int],
    trained: Trained,
) -> Stage:
    passing = forward_bytes(parts.denoiser, family.memory, work, settings.number, settings.way.compiled)
    kept = _of_training(trained, between=True)
    return Stage(name, {**weights, **kept, "activations": passing, "workspace": WORKSPACE})


def text_bytes(parts: Parts, settings: MemorySettings, tokens: int) -> dict[str, int]:
    """Part -> bytes on the device while the text encoders encode one text of `tokens`; empty without encoders."""
    sizes = {
        name: total_bytes(shapes, settings.text_format, settings.weight_width) for name, shapes in parts.texts.items()
    }
    if not sizes:
        return {}
    widest = max(
        (max(shape) for shapes in parts.texts.values() for shape in shapes.values() if len(shape) == 2),
        default=0,
    )
    # the table of words is wider than any result; results are as wide as the feed-forward
    widest = min(widest, 16384)
    passing = tokens * widest * TEXT_WORKING * settings.weight_width
    return {"weights": sum(sizes.values()), "activations": passing, "workspace": WORKSPACE}


def tile_px(frames: int) -> int:
    """Side in px of the tiles of a VAE that works on `frames` at a time."""
    return TILE_PX if frames < _MANY_FRAMES else TILE_PX // 2


def vae_bytes(
    parts: Parts, settings: MemorySettings, pixels: int, decode: bool, frames: int, whole: int = 0
) -> dict[str, int]:
    """Part -> bytes of the VAE and of what it works with; empty where it has nothing to do.

    frames: that are worked on at a time, of whose pixels `pixels` are the sum. whole: pixels of the whole result.
    """
    memory = settings.vae
    if not parts.vae or not pixels or memory is None:
        return {}
    worked = min(pixels, tile_px(frames) ** 2 * frames) if settings.tiles(decode) else pixels
    each = memory.decode if decode else memory.encode
    passing = int(worked * each * parts.vae_width * settings.weight_width * VAE_WORKSPACE)
    # of a clip, the frames that are done wait for the others
    result = max(pixels, whole) * 3 * 4
    return {"vae": parts.vae * settings.weight_width, "pictures": passing + result}
