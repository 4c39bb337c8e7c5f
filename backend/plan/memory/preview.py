"""Estimates what a preview needs before it loads: control images, text, the denoiser with its LoRAs, the VAE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backend.base.paths import resolve
from backend.config.schema import Config, SamplePrompt, with_values
from backend.dataset.controls import sample_sizes
from backend.dataset.references import References
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import Unreadable, read_header
from backend.families.spec import FamilyFacts, VideoRule
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
from backend.plan.mode_plan import fitting_frames, fitting_size, prompt_tokens
from backend.plan.texts import TextPlan, text_length_of
from backend.runs.preview.request import PreviewRequest, Row

SUBJECT = "the preview"
"""What the sentences of its estimate are about."""

_FULL = 4
"""Bytes of a number in the slot that LoRAs are copied into."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewWork:
    """The largest picture or clip of a preview, and its LoRAs. One is drawn at a time."""

    image: int
    """Tokens, those of control images included."""
    text: int
    """Tokens, those before a prompt included."""
    pixels: int
    """That the VAE decodes at a time."""
    whole: int = 0
    """Pixels of a whole clip."""
    encoded: int = 0
    """Pixels of control images that the VAE encodes at a time."""
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
        prompts, references = request.prompts, References.of(cfg, facts, geometry)
        drawn = [_Drawn.of(prompt, references) for prompt in prompts]
        return cls(
            image=max((prompt_tokens(prompt, references) for prompt in prompts), default=0),
            text=_text_tokens(cfg, facts, prompts, references),
            pixels=max((each.area * each.together for each in drawn), default=0),
            whole=max((each.area * each.frames for each in drawn), default=0),
            encoded=max((each.controls for each in drawn), default=0),
            lora=_slot_bytes(request.rows),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """One picture or clip: px of a frame, its frames, those that the VAE works on at a time, px that are encoded."""

    area: int
    frames: int
    together: int
    controls: int

    @classmethod
    def of(cls, prompt: SamplePrompt, references: References) -> _Drawn:
        size = fitting_size(prompt.width, prompt.height, references.geometry)
        frames, video = fitting_frames(prompt.frames, references.geometry, references.video), references.video
        together = min(frames, _piece(video) or frames)
        areas = [math.prod(each) for each in references.sizes(sample_sizes(prompt), size)]
        # a clip's start is encoded as a clip
        controls = max(areas, default=0) * (together if references.starts else 1)
        return cls(area=math.prod(size), frames=frames, together=together, controls=controls)


def _piece(video: VideoRule | None) -> int | None:
    """Frames that a VAE works on at a time; None for all of a clip at once."""
    return 1 if video is None else video.vae_frames


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
    frames = _piece(facts.video) or 1
    decoding = vae_bytes(parts, settings, work.pixels, True, frames, whole=work.whole)
    beside = {} if settings.turns else held | {"workspace": WORKSPACE}
    stages = [
        Stage("encode_pictures", vae_bytes(parts, settings, work.encoded, False, frames)),
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
    if settings.experts:
        moved["second_expert"] = total_bytes(parts.shapes, settings.base_format, settings.weight_width)
    if not on_gpu:
        drawing = [stage for stage in stages if stage.name in ("sample", "decode_samples")]
        worst = max(drawing, key=lambda stage: stage.allocated)
        models = {name: size for name, size in worst.parts.items() if size and name != "workspace"}
        return {"process": PROCESS_CPU + compiler, **models, **waiting, **moved}
    if settings.turns:
        moved["denoiser_while_decoding"] = denoiser_weights(parts, settings)["weights"]
    loading = max([parts.denoiser.largest * 2 * max(2, settings.weight_width), *swapped])
    return {"process": PROCESS_CUDA + compiler, **waiting, **moved, "loading": loading}


def _text_tokens(cfg: Config, facts: FamilyFacts, prompts: Sequence[SamplePrompt], references: References) -> int:
    """Tokens of the longest prompt, with those of the control images that the text encoder reads with it."""
    files = BaseModelFiles.of(cfg.model)
    plan = TextPlan(
        text_length_of(cfg, facts),
        fixed=facts.fixed_text_length,
        before=facts.text_before,
        picture=facts.picture_tokens(files),
    )
    lengths = []
    for prompt in prompts:
        size = fitting_size(prompt.width, prompt.height, references.geometry)
        read = plan.reading([references.sizes(sample_sizes(prompt), size, read=True)])
        lengths.append(read.before + read.asked(prompt.text_length))
    return max(lengths, default=plan.tokens)


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
