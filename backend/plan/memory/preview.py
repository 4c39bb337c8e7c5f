"""Estimates what a preview needs before it loads: text encoders, then the denoiser with its LoRAs, then the VAE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backend.base.paths import resolve
from backend.config.schema import Config, SamplePrompt, with_values
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import Unreadable, read_header
from backend.families.spec import FamilyFacts
from backend.families.table import family as family_named
from backend.plan.memory.activations import Work, forward_bytes
from backend.plan.memory.estimate import WORKSPACE, by_turns, denoiser_weights, text_bytes, vae_bytes
from backend.plan.memory.estimate_result import Estimate, Stage, room_of
from backend.plan.memory.machine import Gpu, installed_gpus, named_gpu, ram
from backend.plan.memory.nearest import Nearest, Search
from backend.plan.memory.parts import Parts
from backend.plan.memory.ram import COMPILER, PROCESS_CPU, PROCESS_CUDA
from backend.plan.memory.settings import MemorySettings, memory_settings
from backend.plan.memory.swap import too_many
from backend.plan.memory.weight_bytes import total_bytes
from backend.plan.memory.work import RunWork
from backend.plan.mode_plan import fitting_size
from backend.plan.texts import text_length_of
from backend.runs.preview.request import PreviewRequest, Row

SUBJECT = "the preview"
"""What the sentences of its estimate are about."""

_FULL = 4
"""Bytes of a number in the slot that LoRAs are copied into."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewWork:
    """The largest picture of a preview, and its LoRAs. One picture is drawn at a time."""

    image: int
    """Tokens."""
    text: int
    """Tokens, those before a prompt included."""
    pixels: int
    lora: int = 0
    """Bytes of the slot that all LoRAs share."""

    @classmethod
    def of(cls, request: PreviewRequest) -> PreviewWork:
        """The work of a request."""
        cfg = request.config
        facts = family_named(cfg.model.family)
        try:
            geometry = facts.geometry(BaseModelFiles.of(cfg.model))
        except ValueError:
            geometry = facts.default_geometry
        sizes = [fitting_size(prompt.width, prompt.height, geometry) for prompt in request.prompts]
        return cls(
            image=max((geometry.image_tokens(*size) for size in sizes), default=0),
            text=_text_tokens(cfg, facts, request.prompts),
            pixels=max(map(math.prod, sizes), default=0),
            lora=_slot_bytes(request.rows),
        )


def preview_estimate(
    cfg: Config,
    work: PreviewWork,
    gpu: Gpu | None,
    *,
    parts: Parts,
    on_gpu: bool = True,
    ram_room: int | None = None,
) -> Estimate:
    """The memory of a preview by stage. Parameters as of `backend.plan.memory.estimate.estimate`."""
    facts = family_named(cfg.model.family)
    settings = memory_settings(cfg, on_gpu)
    limit = int(settings.limit_gb * 2**30) if settings.limit_gb else None
    settings = by_turns(cfg, settings, room_of(gpu, limit), lambda each: _stages(facts, parts, each, work))
    stages = _stages(facts, parts, settings, work)
    wrong = too_many(cfg.memory.blocks_to_swap, len(parts.denoiser.blocks))
    return Estimate(
        tuple(stages),
        _ram(parts, settings, stages, on_gpu),
        gpu,
        limit,
        facts.memory is None,
        settings,
        on_gpu,
        ram_room,
        () if wrong is None else (wrong,),
    )


class PreviewSearch(Search):
    """Looks for settings with which a preview needs less."""

    def __init__(
        self, cfg: Config, work: PreviewWork, gpu: Gpu | None, on_gpu: bool = True, ram_room: int | None = None
    ) -> None:
        """As `Search`, for the pictures of a preview."""
        nothing = RunWork(Work(1, work.image, work.text), 0)
        super().__init__(cfg, nothing, gpu, on_gpu=on_gpu, ram_room=ram_room)
        self.drawing = work

    def after(self, values: Mapping[str, object]) -> Estimate | None:
        """As `Search.after`."""
        changed = with_values(self.cfg, values) if values else self.cfg
        if self.parts is None or (values and self.contradicts(changed)):
            return None
        return preview_estimate(
            changed, self.drawing, self.gpu, parts=self.parts, on_gpu=self.on_gpu, ram_room=self.ram_room
        )


def preview_plan(
    request: PreviewRequest, vram_gb: float | None = None, held: int = 0
) -> tuple[Estimate, Nearest | None] | None:
    """Estimate and nearest change of a preview on this machine; None where the base model can't be read.

    vram_gb: of a GPU elsewhere, in place of this machine's first one. held: bytes of the GPU that a preview before it
    holds, which it gives back.
    """
    gpus = [named_gpu(vram_gb)] if vram_gb else installed_gpus()
    gpu = replace(gpus[0], free=min(gpus[0].total, gpus[0].free + held)) if gpus else None
    room = None if vram_gb else ram().total
    search = PreviewSearch(request.config, PreviewWork.of(request), gpu, on_gpu=gpu is not None, ram_room=room)
    estimate = search.after({})
    return None if estimate is None else (estimate, search.nearest())


def _stages(facts: FamilyFacts, parts: Parts, settings: MemorySettings, work: PreviewWork) -> list[Stage]:
    held = denoiser_weights(parts, settings) | {"lora": work.lora}
    passing = forward_bytes(
        parts.denoiser, facts.memory, Work(1, work.image, work.text), settings.number, settings.way.compiled
    )
    decoding = vae_bytes(parts, settings, work.pixels, True, 1)
    beside = {} if settings.turns else held | {"workspace": WORKSPACE}
    stages = [
        Stage("encode_text", text_bytes(parts, settings, work.text)),
        Stage("sample", {**held, "activations": passing, "workspace": WORKSPACE}),
        Stage("decode_samples", beside | decoding if decoding else {}),
    ]
    return [stage for stage in stages if stage.allocated]


def _ram(parts: Parts, settings: MemorySettings, stages: Sequence[Stage], on_gpu: bool) -> dict[str, int]:
    """Part -> bytes at the worst moment. Text encoders and VAE wait in RAM for the next prompt and picture."""
    compiler = COMPILER if settings.way.compiled else 0
    texts = sum(total_bytes(each, settings.text_format, settings.weight_width) for each in parts.texts.values())
    waiting = {"text_encoders": texts, "vae": parts.vae * settings.weight_width}
    swapped = settings.swapped(parts)
    moved = {"swapped_weights": sum(swapped)} if swapped else {}
    if not on_gpu:
        drawing = [stage for stage in stages if stage.name != "encode_text"]
        worst = max(drawing, key=lambda stage: stage.allocated)
        models = {name: size for name, size in worst.parts.items() if size and name != "workspace"}
        return {"process": PROCESS_CPU + compiler, **models, **waiting, **moved}
    if settings.turns:
        moved["denoiser_while_decoding"] = denoiser_weights(parts, settings)["weights"]
    loading = max([parts.denoiser.largest * 2 * max(2, settings.weight_width), *swapped])
    return {"process": PROCESS_CUDA + compiler, **waiting, **moved, "loading": loading}


def _text_tokens(cfg: Config, facts: FamilyFacts, prompts: Sequence[SamplePrompt]) -> int:
    usual = text_length_of(cfg, facts)
    asked = [usual if facts.fixed_text_length else prompt.text_length or usual for prompt in prompts]
    return facts.text_before + max(asked, default=usual)


def _slot_bytes(rows: Iterable[Row]) -> int:
    """Bytes of the slot over all layers that some row's plain LoRAs change, as wide as the widest row.

    Files that can't be read count as nothing: they are refused by name where they are loaded.
    """
    sides: dict[str, int] = {}
    widest = 0
    for row in rows:
        ranks: dict[str, int] = {}
        for use in row.loras:
            for layer, (rank, both) in _layers(use.path).items():
                sides[layer] = both
                ranks[layer] = ranks.get(layer, 0) + rank
        widest = max(widest, *ranks.values(), 0)
    return sum(sides.values()) * widest * _FULL


def _layers(path: str) -> dict[str, tuple[int, int]]:
    """Layer of a plain LoRA file, by its name there -> (rank, input and output features together)."""
    try:
        tensors = read_header(Path(resolve(path))).tensors
    except (OSError, Unreadable):
        return {}
    downs, ups, decomposed = {}, {}, set()
    for name, (_, shape) in tensors.items():
        stem, _, part = name.partition(".lora_")
        if part.startswith(("A", "down")):
            downs[stem] = shape
        elif part.startswith(("B", "up")):
            ups[stem] = shape
        elif part.startswith("magnitude") or name.endswith(".dora_scale"):
            decomposed.add(stem.removesuffix(".dora_scale"))
    return {
        stem: (shape[0], math.prod(shape[1:]) + ups[stem][0])
        for stem, shape in downs.items()
        if stem in ups and len(shape) > 1 and stem not in decomposed
    }
