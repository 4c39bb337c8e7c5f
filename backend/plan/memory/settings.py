"""Resolves the settings of a run that decide how much memory it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backend.base.problems import errors
from backend.config.checkpointing import PARTITIONING, checkpointing_of, may_keep_attention, within_graphs
from backend.config.experts import turns_of
from backend.config.graph_choice import recording_of
from backend.config.rules.check import check
from backend.config.schema import with_values
from backend.config.tensor_steps import by_tensor, compiles_steps, moves_stored
from backend.families.activations import VaeActivations
from backend.families.table import family as family_named
from backend.plan.memory.activations import Format, Way
from backend.plan.memory.optimizer_bytes import streamed_bytes
from backend.plan.memory.parts import Parts
from backend.plan.memory.swap import device_bytes, swapped_blocks
from backend.plan.memory.weight_bytes import COPYING, stored_as, total_bytes

if TYPE_CHECKING:
    from backend.config.schema import Config

_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
_USUAL_VAE = VaeActivations(encode=5, decode=6)


@dataclass(frozen=True)
class MemorySettings:
    """What of a config decides over memory, with auto resolved."""

    weight_width: int
    """Bytes of an unquantised weight."""
    base_format: str | None
    """Quantisation of the base model; None for none."""
    text_format: str | None
    """The same of the text encoders."""
    autocast: bool
    """Mixed precision is on."""
    number: Format
    way: Way
    rank: int
    lora_dtype: str
    vae: VaeActivations
    blocks_to_swap: int = 0
    ring: int = 2
    limit_gb: float | None = None
    tiled_encode: bool = False
    tiled_decode: bool = False
    turns: bool = False
    """The denoiser leaves the GPU while samples are decoded."""
    recorded: bool = False
    """Passes are replayed as CUDA graphs."""
    may_record: bool = False
    """Left to itself, the run records passes where it finds the memory."""
    accumulates: bool = False
    """Gradients are summed up over several passes."""
    experts: bool = False
    """Both experts of a model of two are trained: one waits in RAM."""
    full_width: int | None = None
    """Bytes of a weight of the denoiser that is trained itself; None where it is frozen."""
    fused: bool = False
    """Each gradient is used and freed in the backward pass."""
    copies: bool = False
    """Weights that are multiplied in 8 bits have a transposed copy on the GPU, for the backward pass."""
    may_copy: bool = False
    """Left to itself, the run makes these copies where they fit."""
    may_keep_attention: bool = False
    """Left to itself, the run keeps the results of attention where they fit with margin."""
    streamed_state: int = 0
    """Bytes of optimizer state a trained weight that go to RAM with its block, where that is swapped."""
    step_copies: int = 0
    """float32 copies of a trained tensor of the denoiser that are there while it is moved."""

    @property
    def keeps_attention(self) -> bool:
        """The run keeps the results of attention, without having been asked to."""
        return self.may_keep_attention and self.way.checkpointing == "attention"

    def keeping_attention(self) -> MemorySettings:
        """These, with the results of attention kept."""
        return replace(self, way=replace(self.way, checkpointing="attention"))

    @property
    def full(self) -> bool:
        """The denoiser's own weights are trained."""
        return self.full_width is not None

    @property
    def denoiser_width(self) -> int:
        """Bytes of an unquantised weight of the denoiser."""
        return self.weight_width if self.full_width is None else self.full_width

    def tiles(self, decode: bool) -> bool:
        """Whether the VAE works in tiles."""
        return self.tiled_decode if decode else self.tiled_encode

    def swap(self, parts: Parts) -> tuple[int, int]:
        """Bytes of weights that stay in RAM, and of the ring on the GPU that they pass through."""
        sizes = self.swapped(parts)
        return sum(sizes), device_bytes(sizes, self.ring)

    def swapped(self, parts: Parts) -> list[int]:
        """Bytes of each swapped block."""
        total = len(parts.denoiser.blocks)
        # Over all blocks in running order, as the trainer swaps: classes may alternate, and then by class differs.
        (picked,) = swapped_blocks({"block": total}, min(self.blocks_to_swap, total)).values()
        return [block_weights(parts, index, self) for index in picked]

    def swapped_state(self, parts: Parts) -> list[int]:
        """Bytes of the optimizer's state of each swapped block that is in RAM with it."""
        if not self.streamed_state:
            return []
        return [self.streamed_state * size // self.denoiser_width for size in self.swapped(parts)]


def block_weights(parts: Parts, index: int, settings: MemorySettings) -> int:
    """Bytes of the linear layers of a block, which are what is swapped."""
    block = parts.denoiser.blocks[index]
    shapes = {f"blocks.0.{path}.weight": (outer, inner) for path, (inner, outer) in block.linears.items()}
    return total_bytes(shapes, settings.base_format, settings.denoiser_width, settings.copies)


def memory_settings(cfg: Config, on_gpu: bool) -> MemorySettings:
    """The settings of `cfg`; vae_tiling and offload_by_turns in auto count as off until something does not fit."""
    width = _WIDTHS.get(cfg.model.weight_dtype, 2 if on_gpu else 4)
    mixed = cfg.training.mixed_precision
    full = _WIDTHS[cfg.training.full_weight_dtype] if cfg.training.kind == "full" else None
    autocast = mixed in ("bf16", "fp16") or (mixed == "auto" and on_gpu)
    family_memory = family_named(cfg.model.family).memory
    memory = cfg.memory
    return MemorySettings(
        weight_width=width,
        base_format=stored_as(memory.base_quantization, memory.base_compute),
        text_format=stored_as(memory.text_encoder_quantization),
        autocast=autocast,
        number=Format(2, 4) if autocast else Format(*(full or width,) * 2),
        way=Way(cfg.compile.compile, checkpointing_of(cfg), _budget(cfg)),
        rank=0 if full else cfg.network.network_dim,
        lora_dtype=cfg.network.lora_weight_dtype,
        vae=family_memory.vae if family_memory else _USUAL_VAE,
        blocks_to_swap=memory.blocks_to_swap,
        ring=memory.swap_ring,
        limit_gb=memory.vram_limit_gb,
        tiled_encode=memory.vae_tiling == "on",
        tiled_decode=memory.vae_tiling == "on",
        turns=memory.offload_by_turns == "on",
        recorded=on_gpu and recording_of(cfg) == "on",
        may_record=on_gpu
        and family_memory is not None
        and family_memory.launch_bound
        and recording_of(cfg) == "auto"
        and not unrecordable(cfg),
        accumulates=cfg.training.gradient_accumulation_steps > 1,
        experts=turns_of(cfg) is not None,
        full_width=full,
        fused=cfg.optimizer.fused_backward,
        copies=memory.base_compute != "bf16" and memory.base_products == "fast",
        may_copy=on_gpu and _may_copy(cfg),
        may_keep_attention=on_gpu and may_keep_attention(cfg),
        streamed_state=streamed_bytes(cfg.optimizer.optimizer, cfg.optimizer.optimizer_args) if full else 0,
        step_copies=_step_copies(cfg, on_gpu) if full else 0,
    )


def _step_copies(cfg: Config, on_gpu: bool) -> int:
    """float32 copies of a tensor while it is moved.

    2 of what the optimizer makes of the gradient. Of 16-bit weights 2 more, of weight and gradient, and the bits that
    they are rounded by, unless the rounding is compiled. Of a step compiled whole, what is between its two sums.
    """
    compiled = compiles_steps(cfg.compile, on_gpu)
    if compiled and by_tensor(cfg.training, cfg.optimizer) and moves_stored(cfg.optimizer):
        return 1
    if cfg.training.full_weight_dtype == "fp32":
        return 2
    return 4 if compiled else 6


def _may_copy(cfg: Config) -> bool:
    """Whether copies of 8-bit weights are left to what fits; swapped blocks would take twice as long to copy."""
    memory = cfg.memory
    return memory.base_products == "auto" and memory.base_compute in COPYING and not memory.blocks_to_swap


def unrecordable(cfg: Config) -> str:
    """Why the passes of a run can't be recorded, whatever its GPU: what the rules say where it is asked for, or ""."""
    backends = [cfg.compile.compile_backend, *(row.backend for row in cfg.compile.compile_blocks or ())]
    if cfg.compile.compile and "cudagraphs" in backends:
        return "the compile backend cudagraphs records by itself"
    problems = errors(check(with_values(cfg, {"compile.cuda_graphs": "on"})))
    return next((problem.text for problem in problems if problem.path == "compile.cuda_graphs"), "")


def _budget(cfg: Config) -> float:
    """Share of its activations that a compiled block may keep."""
    share = cfg.memory.activation_memory_budget
    if share is None or cfg.memory.checkpointing_kind == "attention":
        return 0.0 if within_graphs(cfg) else 1.0
    return share if cfg.compile.compile_backend in PARTITIONING else 1.0
