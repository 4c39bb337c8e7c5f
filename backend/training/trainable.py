"""What a run trains: the denoiser with its LoRA, trained text encoders, and what moves them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.config.layer_patterns import by_rate
from backend.config.schema import Config
from backend.lora import loraplus
from backend.lora.comfyui_keys import LayerNames, not_loadable
from backend.lora.dora import frozen_lengths
from backend.lora.fused_layers import fuse
from backend.lora.inject import Lora, inject
from backend.lora.load import continue_from, read_lora
from backend.lora.max_norm import NormLimit
from backend.lora.save import check_savable
from backend.memory import checkpointing
from backend.memory.block_swap import BlockSwap
from backend.memory.run_block_swap import swap_blocks
from backend.optimizers.ema import PART, Ema
from backend.optimizers.state import ExactSchedule, ExactState, has_two_points, weights_to_use
from backend.plan.lora_findings import lora_findings
from backend.runs.events import EventWriter
from backend.training.checkpoint import Stateful
from backend.training.inputs import Inputs, optimizer_of, scheduler_of
from backend.training.text_encoders import TrainedText, load_trained_text

log = logging.getLogger(__name__)


@dataclass
class Trained:
    """The denoiser with its LoRA and what moves it.

    names: of the LoRA's layers in files. encoders: the text encoders, where they are trained too. norms: what holds the
    LoRA to a norm, where that is set. ema: the running mean that is used in place of what is trained, likewise.
    """

    denoiser: nn.Module
    lora: Lora
    optimizer: Any
    scheduler: Any
    names: LayerNames
    swap: BlockSwap | None = None
    encoders: TrainedText | None = None
    norms: NormLimit | None = None
    ema: Ema | None = None

    def parts(self, accelerator: Accelerator) -> dict[str, Stateful]:
        """What the resume state holds beside the LoRA."""
        optimizer, schedule = self.optimizer.optimizer, self.scheduler.scheduler
        found = {"optimizer": ExactState(optimizer), "scheduler": ExactSchedule(schedule)}
        found |= {"scaler": accelerator.scaler} if accelerator.scaler is not None else {}
        return found | ({PART: self.ema} if self.ema is not None else {})

    def to_use(self) -> AbstractContextManager[None]:
        """Holds the LoRA at the weights that files, validation and samples take."""
        mean = None if self.ema is None else self.ema.mean
        return weights_to_use(self.optimizer.optimizer, self.lora.parameters(), self.lora.publish, mean)


def load_trained(inputs: Inputs, accelerator: Accelerator, events: EventWriter, stack: ExitStack) -> Trained:
    """Order: load, LoRA, checkpointing, swap, prepare."""
    cfg = inputs.cfg
    denoiser = inputs.code.load_denoiser(inputs.base, inputs.denoiser_loading)
    encoders = load_trained_text(inputs, accelerator) if inputs.trains_text else None
    names = inputs.names if encoders is None else inputs.names.joined(encoders.layers)
    lora = _inject(inputs, denoiser, encoders, names, events)
    kind = cfg.memory.checkpointing_kind if cfg.training.gradient_checkpointing else "off"
    checkpointing.apply(denoiser, kind, cfg.network.drops)
    if kind == "offload" and inputs.device.type == "cpu":
        text = "checkpointing_kind offload saves nothing here: the model is on the CPU already"
        events.write("warning", text=text, remedy="Set memory.checkpointing_kind to auto.")
    swap = None
    if inputs.swapped:
        swap = swap_blocks(denoiser, inputs.running_order(denoiser), cfg, inputs.device, events, stack)
    optimizer = optimizer_of(cfg, _by_rate(lora, inputs, encoders))
    norms = _after_steps(optimizer, lora, cfg.network.scale_weight_norms)
    ema = _ema(cfg, lora, optimizer)
    scheduler = scheduler_of(cfg, optimizer, inputs.plan.steps.steps)
    optimizer, scheduler = accelerator.prepare(optimizer, scheduler)
    return Trained(denoiser, lora, optimizer, scheduler, names, swap, encoders, norms, ema)


def _ema(cfg: Config, lora: Lora, optimizer: torch.optim.Optimizer) -> Ema | None:
    """The running mean that the settings ask for. Refused beside an optimizer that makes one itself."""
    if not cfg.training.ema:
        return None
    if has_two_points(optimizer):
        text = f"{type(optimizer).__name__} averages its weights itself, and ema would do so once more"
        raise Refused(text, "Turn ema off, or choose another optimizer, such as adamw.", "training.ema")
    log.info("Files, validation and samples have the mean of the weights over the steps (ema), not the last ones")
    return Ema(lora, cfg.training.ema_decay)


def _after_steps(optimizer: torch.optim.Optimizer, lora: Lora, limit: float | None) -> NormLimit | None:
    """Let the forward take what each step made, held to a norm of at most `limit` where there is one."""
    norms = None if limit is None else NormLimit(lora, limit)

    def moved(*_: Any) -> None:
        if norms is not None:
            norms.apply()
        lora.publish()

    optimizer.register_step_post_hook(moved)
    return norms


def _inject(
    inputs: Inputs, denoiser: nn.Module, encoders: TrainedText | None, names: LayerNames, events: EventWriter
) -> Lora:
    """The LoRA of the denoiser and of trained text encoders, continued from a file if one is set."""
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
        device=inputs.device,
    )
    if network.network_type == "dora" and cfg.saving.save_layout == "kohya":
        lora = replace(lora, frozen_lengths=frozen_lengths(denoiser, lora.layers, names))
    if network.lora_fused:
        fuse(lora)
    lora = lora if encoders is None else lora.joined(encoders.lora)
    check_savable(lora, names, cfg.saving.save_layout)
    lora = lora.in_format({"fp32": torch.float32, "bf16": torch.bfloat16}[network.lora_weight_dtype])
    elsewhere = not_loadable(lora.layers, inputs.family.lora_layers)
    if elsewhere:
        text = f"ComfyUI will not load the LoRA of {len(elsewhere)} layers ({', '.join(elsewhere[:3])})"
        events.write("warning", text=text, remedy="Leave them out with targets_exclude if that matters.")
    for finding in lora_findings(cfg, inputs.family, inputs.targets):
        if finding.severity == "warning":
            events.write("warning", text=finding.text, remedy=finding.remedy)
        else:
            log.info(finding.sentence())
    if network.network_weights:
        for said in continue_from(lora, read_lora(resolve(network.network_weights), names)):
            events.write("warning", text=said, remedy="")
    return lora


def _by_rate(lora: Lora, inputs: Inputs, encoders: TrainedText | None) -> list[dict[str, Any]]:
    """Groups of the optimizer: one a learning rate, the run's own first, the text encoders' last.

    With LoRA+ each is two, A's before B's, so that the first group's rate stays that of the run.
    """
    chosen = inputs.cfg.optimizer
    usual = chosen.optimizer_args.get("lr", chosen.learning_rate)
    ratio, text_ratio = loraplus.ratios(inputs.cfg.network) or (None, None)
    found = []
    for rate, paths in by_rate(inputs.sizes).items():
        found += loraplus.groups(lora, paths, rate, usual, ratio)
    if encoders is not None:
        found += loraplus.groups(lora, list(encoders.lora.layers), chosen.text_encoder_lr, usual, text_ratio)
    return found
