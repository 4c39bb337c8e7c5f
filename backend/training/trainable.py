"""Loads what a run trains: the denoiser with its LoRA or its own weights, text encoders, and what moves them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch import nn

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.config.experts import SIDES, Turns, boundary_of, expert_file, sides_of, turns_of
from backend.config.layer_patterns import by_rate
from backend.config.schema import Config
from backend.config.sections.network import NetworkSection
from backend.config.sections.training import TrainingSection
from backend.config.tensor_steps import compiles_steps
from backend.families.files.parts import Part
from backend.families.spec import Side
from backend.lora import loraplus
from backend.lora.comfyui_keys import LayerNames, not_loadable
from backend.lora.fused_layers import fuse
from backend.lora.inject import Lora, inject
from backend.lora.load import continue_from, read_lora
from backend.lora.max_norm import NormLimit
from backend.lora.row_lengths import frozen_lengths
from backend.lora.save import check_savable
from backend.memory import checkpointing
from backend.memory.block_swap import BlockSwap
from backend.memory.pinned_memory import pinned_limit
from backend.memory.run_block_swap import swap_blocks
from backend.memory.second_weights import SecondWeights
from backend.objectives.choose import objective_of
from backend.optimizers.ema import PART, Ema
from backend.optimizers.from_settings import optimizer_of, scheduler_of
from backend.optimizers.state import ExactSchedule, ExactState, has_two_points, weights_to_use
from backend.optimizers.trained_weights import TrainedWeights
from backend.plan.lora_findings import lora_findings
from backend.runs.events import EventWriter
from backend.runs.events.kinds import WarningEvent
from backend.training.checkpoint import Stateful
from backend.training.experts import PART as EXPERTS
from backend.training.experts import Experts, aside_of
from backend.training.full_files import full_files
from backend.training.full_weights import FullWeights
from backend.training.inputs import Inputs
from backend.training.saved_files import LoraFiles, SavedFiles
from backend.training.text_encoders import TrainableText, load_trainable_text

log = logging.getLogger(__name__)

_FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(kw_only=True, slots=True)
class Trainable:
    """The denoiser, what of it is trained, and what moves that."""

    denoiser: nn.Module
    weights: TrainedWeights
    """The LoRA, or the denoiser's own weights."""
    files: SavedFiles
    """What `weights` become in files."""
    optimizer: AcceleratedOptimizer
    scheduler: AcceleratedScheduler
    swap: BlockSwap | None = None
    encoders: TrainableText | None = None
    """The text encoders, where they are trained too."""
    norms: NormLimit | None = None
    """Holds the LoRA to a norm, where that is set."""
    ema: Ema | None = None
    """The running mean that is used in place of what is trained, where that is set."""
    experts: Experts | None = None
    """Both experts of a model of two, where both are trained."""

    def parts(self, accelerator: Accelerator) -> dict[str, Stateful]:
        """What the resume state holds besides the weights."""
        optimizer, schedule = self.optimizer.optimizer, self.scheduler.scheduler
        parts: dict[str, Stateful] = {"optimizer": ExactState(optimizer)}
        # before the schedule, which sets the rates that are changed since
        parts |= {EXPERTS: self.experts} if self.experts is not None else {}
        parts |= {"scheduler": ExactSchedule(schedule)}
        parts |= {"scaler": accelerator.scaler} if accelerator.scaler is not None else {}
        return parts | ({PART: self.ema} if self.ema is not None else {})

    def to_use(self) -> AbstractContextManager[None]:
        """Holds what is trained, of two experts that in the model, at the weights that files and measurements take."""
        mean = None if self.ema is None else self.ema.mean
        return weights_to_use(self.optimizer.optimizer, self.weights.parameters(), self.weights.publish, mean)


def load_trainable(inputs: Inputs, accelerator: Accelerator, events: EventWriter, stack: ExitStack) -> Trainable:
    """Order: load, LoRA or own weights, checkpointing, swap, prepare."""
    cfg = inputs.cfg
    sides = sides_of(cfg)
    part = expert_part(inputs, sides[0] if sides else None)
    denoiser = inputs.code.load_denoiser(inputs.base, inputs.denoiser_loading, part)
    encoders = load_trainable_text(inputs, accelerator) if inputs.trains_text else None
    weights, files = (
        _own(inputs, denoiser, encoders, part) if inputs.full else _lora(inputs, denoiser, encoders, events)
    )
    kind = cfg.memory.checkpointing_kind if cfg.training.gradient_checkpointing else "off"
    checkpointing.apply(denoiser, kind, cfg.network.drops and not inputs.full)
    if kind == "offload" and inputs.device.type == "cpu":
        text = "checkpointing_kind offload saves nothing here: the model is on the CPU already"
        events.write(WarningEvent(text=text, remedy="Set memory.checkpointing_kind to auto."))
    swap = None
    if inputs.swapped:
        swap = swap_blocks(denoiser, inputs.running_order(denoiser), cfg, inputs.device, events, stack)
    if isinstance(weights, FullWeights):
        weights.swap = swap
        optimizer = own_optimizer(weights, cfg, inputs.device)
    else:
        optimizer = optimizer_of(cfg.optimizer, _by_rate(weights, inputs, encoders))
    norms = _after_steps(optimizer, weights, cfg.network.scale_weight_norms)
    ema = _ema(cfg.training, weights, optimizer)
    scheduler = scheduler_of(cfg.optimizer, optimizer, inputs.plan.steps.steps)
    optimizer, scheduler = accelerator.prepare(optimizer, scheduler)
    trainable = Trainable(
        denoiser=denoiser,
        weights=weights,
        files=files,
        optimizer=optimizer,
        scheduler=scheduler,
        swap=swap,
        encoders=encoders,
        norms=norms,
        ema=ema,
    )
    turns = turns_of(cfg)
    if turns is not None:
        trainable.experts = _experts(inputs, trainable, turns, events, stack)
    return trainable


def own_optimizer(weights: FullWeights, cfg: Config, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of a whole denoiser, whose steps are compiled where that is worth it."""
    return weights.optimizer(cfg.network, cfg.optimizer, compiles_steps(cfg.compile, device.type == "cuda"))


def _experts(inputs: Inputs, trainable: Trainable, turns: Turns, events: EventWriter, stack: ExitStack) -> Experts:
    """Both experts, that for high noise in the model; the other one's weights are read into memory of the host."""
    cfg, host = inputs.cfg, torch.device("cpu")
    loading = replace(inputs.denoiser_loading, host=lambda path: True)
    second = inputs.code.load_denoiser(inputs.base, loading, expert_part(inputs, "low"))
    files, own = trainable.files, trainable.weights
    assert isinstance(files, LoraFiles) and isinstance(own, Lora)
    lora = _lora_of(inputs, second, files.names, host)
    _continue(lora, cfg.network, files.names, events, "low")
    pairs = [
        pair
        for mine, other in zip(
            inputs.running_order(trainable.denoiser).values(), inputs.running_order(second).values(), strict=True
        )
        for pair in zip(mine, other, strict=True)
    ]
    swap = trainable.swap
    limit = pinned_limit(cfg.memory.swap_pinned_limit_gb) - (0 if swap is None else swap.facts.pinned)
    weights = SecondWeights(trainable.denoiser, second, pairs, swap, limit)
    stack.callback(weights.close)
    boundary, optimizer = boundary_of(cfg), trainable.optimizer.optimizer
    assert boundary is not None
    return Experts(
        lora=own,
        optimizer=optimizer,
        weights=weights,
        aside=aside_of(own, lora.tensors(), optimizer, trainable.ema),
        turns=turns,
        boundary=boundary,
        frozen_lengths={"high": own.frozen_lengths, "low": lora.frozen_lengths},
        objectives={side: objective_of(cfg, inputs.family, inputs.code, inputs.base, side) for side in SIDES},
        to_use=trainable.to_use,
        ema=trainable.ema,
    )


def expert_part(inputs: Inputs, side: Side | None) -> Part:
    """The part that is loaded as the denoiser, under the name of the first, by which LoRA files are merged into it."""
    return replace(inputs.family.expert_part(inputs.base, side), name=inputs.family.denoiser.name)


def _own(
    inputs: Inputs, denoiser: nn.Module, encoders: TrainableText | None, part: Part
) -> tuple[FullWeights, SavedFiles]:
    """The own weights of denoiser and trained text encoders, and their files.

    part: of the base model, which the denoiser was loaded from.
    """
    cfg, texts = inputs.cfg, {} if encoders is None else encoders.whole
    weights = FullWeights.of(denoiser, cfg.network, texts)
    files = full_files(
        denoiser,
        inputs.base,
        inputs.family,
        layout=cfg.saving.model_layout,
        precision=cfg.saving.save_precision,
        state=partial(weights.state_of, denoiser),
        encoders=texts,
        part=part,
    )
    return weights, files


def _lora(
    inputs: Inputs, denoiser: nn.Module, encoders: TrainableText | None, events: EventWriter
) -> tuple[Lora, SavedFiles]:
    """The LoRA of the denoiser and of trained text encoders, and its files."""
    names = inputs.names if encoders is None else inputs.names.joined(encoders.layers)
    lora = _inject(inputs, denoiser, encoders, names, events)
    return lora, LoraFiles(lora, inputs.cfg.saving, names)


def _ema(training: TrainingSection, weights: TrainedWeights, optimizer: torch.optim.Optimizer) -> Ema | None:
    """The running mean that the settings ask for. Refused with an optimizer that makes one itself."""
    if not training.ema:
        return None
    if has_two_points(optimizer):
        text = f"{type(optimizer).__name__} averages its weights itself, and ema would do so once more"
        raise Refused(text, "Turn ema off, or choose another optimizer, such as adamw.", "training.ema")
    log.info("Files, validation and samples have the mean of the weights over the steps (ema), not the last ones")
    return Ema(weights, training.ema_decay)


def _after_steps(optimizer: torch.optim.Optimizer, weights: TrainedWeights, limit: float | None) -> NormLimit | None:
    """Let the forward take what each step made, held to a norm of at most `limit` where there is one."""
    norms = NormLimit(weights, limit) if limit is not None and isinstance(weights, Lora) else None

    def moved(*_: Any) -> None:
        if norms is not None:
            norms.apply()
        weights.publish()

    optimizer.register_step_post_hook(moved)
    return norms


def _inject(
    inputs: Inputs, denoiser: nn.Module, encoders: TrainableText | None, names: LayerNames, events: EventWriter
) -> Lora:
    """The LoRA of the denoiser and of trained text encoders, continued from a file if one is set."""
    cfg, network = inputs.cfg, inputs.cfg.network
    lora = _lora_of(inputs, denoiser, names, inputs.device)
    lora = lora if encoders is None else lora.joined(encoders.lora)
    check_savable(lora, names, cfg.saving.save_layout)
    lora = lora.in_format(_FORMATS[network.lora_weight_dtype])
    unknown = not_loadable(lora.layers, inputs.family.lora_layers)
    if unknown:
        text = f"ComfyUI will not load the LoRA of {len(unknown)} layers ({', '.join(unknown[:3])})"
        events.write(WarningEvent(text=text, remedy="Leave them out with targets_exclude if that matters."))
    for finding in lora_findings(cfg, inputs.family, inputs.targets):
        if finding.severity == "warning":
            events.write(WarningEvent(text=finding.text, remedy=finding.remedy))
        else:
            log.info(finding.sentence())
    sides = sides_of(cfg)
    _continue(lora, network, names, events, sides[0] if len(sides) == 2 else None)
    return lora


def _lora_of(inputs: Inputs, denoiser: nn.Module, names: LayerNames, device: torch.device) -> Lora:
    """The LoRA of a denoiser as it starts, float32 on `device`."""
    cfg, network = inputs.cfg, inputs.cfg.network
    lora = inject(
        denoiser,
        inputs.targets,
        rank=network.network_dim,
        alpha=network.network_alpha,
        dropout=network.network_dropout,
        rank_dropout=network.rank_dropout,
        module_dropout=network.module_dropout,
        seed=cfg.training.seed,
        sizes=inputs.sizes,
        kind=network.network_type,
        factor=network.lokr_factor,
        cast=inputs.precision == "no",
        device=device,
    )
    if network.network_type == "dora" and cfg.saving.save_layout == "kohya":
        lora = replace(lora, frozen_lengths=frozen_lengths(denoiser, lora.layers, names))
    if network.lora_fused:
        fuse(lora)
    return lora


def _continue(lora: Lora, network: NetworkSection, names: LayerNames, events: EventWriter, side: Side | None) -> None:
    """Set the LoRA to what the file holds that the run continues from, if one is set; of two, that of the expert."""
    if not network.network_weights:
        return
    path = resolve(network.network_weights)
    for problem in continue_from(lora, read_lora(path if side is None else expert_file(path, side), names)):
        events.write(WarningEvent(text=problem, remedy=""))


def _by_rate(lora: Lora, inputs: Inputs, encoders: TrainableText | None) -> list[dict[str, Any]]:
    """Groups of the optimizer: one a learning rate, the run's own first, the text encoders' last.

    With LoRA+ each is two, A's before B's, so that the first group's rate stays that of the run.
    """
    settings = inputs.cfg.optimizer
    usual = settings.optimizer_args.get("lr", settings.learning_rate)
    ratio, text_ratio = loraplus.ratios(inputs.cfg.network) or (None, None)
    groups = []
    for rate, paths in by_rate(inputs.sizes).items():
        groups += loraplus.groups(lora, paths, rate, usual, ratio)
    if encoders is not None:
        groups += loraplus.groups(lora, list(encoders.lora.layers), settings.text_encoder_lr, usual, text_ratio)
    return groups
