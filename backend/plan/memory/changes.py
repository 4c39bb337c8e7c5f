"""Lists single changes of settings that save memory, mildest and cheapest first: what each sets and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.config.checkpointing import may_keep_attention
from backend.config.graph_choice import RECORDING_MODES, recording_of
from backend.config.schema import with_values
from backend.plan.memory.parts import Parts

if TYPE_CHECKING:
    from backend.config.schema import Config

Values = Mapping[str, Any]
"""Setting (``section.name``) -> value."""

_SIZES = (768, 512)
_SWAP_STEPS = 14
_EIGHT_BIT = {"adamw": "adamw8bit", "adam": "adamw8bit", "lion": "lion8bit", "paged_adamw": "adamw8bit"}


@dataclass(frozen=True)
class Change:
    """Settings to change together."""

    values: Values
    words: str
    """What to do."""
    cost: str
    """What it costs apart from memory, in a few words."""


Maker = Callable[["Config", Parts | None], Iterator[Change]]
"""Changes of one kind that a config allows, mildest first."""


def _turns(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    for value in _stronger(cfg.memory.offload_by_turns):
        yield Change({"memory.offload_by_turns": value}, "let the denoiser wait while samples are decoded", "seconds")


def _recordings(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if recording_of(cfg) == "on":
        words = "record CUDA graphs only where there is memory for them"
        values: Values = {"compile.cuda_graphs": "auto"} if cfg.compile.cuda_graphs == "on" else {}
        if cfg.compile.compile_mode in RECORDING_MODES:
            values = {**values, "compile.compile_mode": RECORDING_MODES[cfg.compile.compile_mode]}
        yield Change(values, words, "what they would have saved of a step")


def _tiles(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    for value in _stronger(cfg.memory.vae_tiling):
        yield Change({"memory.vae_tiling": value}, "let the VAE work in tiles", "nothing that can be seen")


def _stronger(value: str) -> tuple[str, ...]:
    return {"off": ("auto", "on"), "auto": ("on",)}.get(value, ())


def _optimizer(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    name = _EIGHT_BIT.get(cfg.optimizer.optimizer)
    if name:
        yield Change({"optimizer.optimizer": name}, f"use the optimizer {name}", "next to nothing")


def _checkpointing(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if not cfg.training.gradient_checkpointing:
        values = {"training.gradient_checkpointing": True}
        yield Change(values, "turn on gradient checkpointing", "about a third more time a step")


def _kind(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    # where it is left to the run, auto might be attention again
    chooses = may_keep_attention(with_values(cfg, {"memory.checkpointing_kind": "auto"}))
    asked = cfg.memory.checkpointing_kind
    if cfg.training.gradient_checkpointing and (asked == "attention" or (asked == "auto" and chooses)):
        values = {"memory.checkpointing_kind": "block" if chooses else "auto"}
        yield Change(values, "compute attention again", "some time a step")
    if cfg.training.gradient_checkpointing and cfg.memory.checkpointing_kind == "selective":
        yield Change({"memory.checkpointing_kind": "auto"}, "checkpoint every block", "some time a step")
    if cfg.training.gradient_checkpointing and cfg.memory.checkpointing_kind != "offload":
        words = "keep the blocks' inputs in RAM"
        yield Change({"memory.checkpointing_kind": "offload"}, words, "a little time a step")


def _text(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    for name in {"none": ("int8", "nf4"), "int8": ("nf4",)}.get(cfg.memory.text_encoder_quantization, ()):
        values = {"memory.text_encoder_quantization": name}
        yield Change(values, f"load the text encoders in {name}", "slightly other captions")


def _full(cfg: Config) -> bool:
    """Whether the base itself is trained, which then is not quantised."""
    return cfg.training.kind == "full"


def _copies(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if cfg.memory.base_products == "fast" and cfg.memory.base_compute != "bf16":
        values = {"memory.base_products": "small"}
        yield Change(values, "keep no transposed copies of 8-bit weights", "some time a step")


def _base(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if _full(cfg):
        return
    if cfg.memory.base_quantization == "none" and cfg.memory.base_compute == "bf16":
        yield Change({"memory.base_quantization": "int8"}, "keep the base model in int8", "a little precision")


def _swap(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if parts is None or (_full(cfg) and (not cfg.optimizer.fused_backward or cfg.training.ema)):
        return
    blocks, now = len(parts.denoiser.blocks), cfg.memory.blocks_to_swap
    step = max(1, blocks // _SWAP_STEPS)
    for count in range(now + step, blocks - 1, step):
        yield Change({"memory.blocks_to_swap": count}, f"swap {count} of {blocks} blocks", "time where the bus is slow")


def _batch(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    batch, accumulation = cfg.dataset.batch_size, cfg.training.gradient_accumulation_steps
    if batch > 1:
        values = {"dataset.batch_size": 1, "training.gradient_accumulation_steps": accumulation * batch}
        yield Change(values, f"use batches of 1, accumulated {accumulation * batch} times", "some time a step")


def _resolution(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    for size in _SIZES:
        if size < cfg.dataset.resolution:
            yield Change({"dataset.resolution": size}, f"train at {size} px", "fine detail")


def _harder(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if not _full(cfg) and cfg.memory.base_quantization != "nf4" and cfg.memory.base_compute == "bf16":
        yield Change({"memory.base_quantization": "nf4"}, "keep the base model in NF4", "more of its precision")


def _rank(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    rank = cfg.network.network_dim
    if rank >= 16 and not _full(cfg):
        values = {"network.network_dim": rank // 2, "network.network_alpha": cfg.network.network_alpha / 2}
        yield Change(values, f"use rank {rank // 2}", "some of what the LoRA can learn")


def _less_swap(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    now = cfg.memory.blocks_to_swap
    blocks = now if parts is None else len(parts.denoiser.blocks)
    step = max(1, blocks // _SWAP_STEPS)
    for count in range(now - step, -1, -step):
        yield Change({"memory.blocks_to_swap": count}, f"swap {count} of {blocks} blocks", "memory of the GPU")


def _inputs_on_gpu(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if cfg.training.gradient_checkpointing and cfg.memory.checkpointing_kind == "offload":
        words = "keep the blocks' inputs on the GPU"
        yield Change({"memory.checkpointing_kind": "auto"}, words, "memory of the GPU")


def _no_turns(cfg: Config, parts: Parts | None) -> Iterator[Change]:
    if cfg.memory.offload_by_turns != "off":
        words = "leave the denoiser on the GPU while samples are decoded"
        yield Change({"memory.offload_by_turns": "off"}, words, "memory of the GPU")


LESS_VRAM: tuple[Maker, ...] = (
    _turns,
    _recordings,
    _tiles,
    _optimizer,
    _checkpointing,
    _kind,
    _text,
    _copies,
    _base,
    _swap,
    _batch,
    _resolution,
    _harder,
    _rank,
)
"""In order of least cost, as those see it who train: what costs nothing, a little precision, time, then quality."""

LESS_RAM: tuple[Maker, ...] = (_inputs_on_gpu, _no_turns, _less_swap, _base, _harder)
"""The same for what a run on a GPU holds in the machine's memory."""
