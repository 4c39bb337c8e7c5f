"""Loads the text encoders that are trained with the denoiser: their LoRA, and how captions are encoded meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn

from backend.lora.comfyui_keys import linear_layers
from backend.lora.inject import Lora, find_targets, inject
from backend.models.common.clip_encoders import clips_by_part
from backend.training.full_weights import denoiser_dtype
from backend.training.inputs import Inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainableText:
    """The text encoders that are trained, with their LoRA or whole, on the device for the whole run."""

    stack: Any
    """The family's text stack."""
    lora: Lora | None
    layers: dict[str, tuple[int, int]]
    """Layers of the LoRA, as in `Names`."""
    whole: dict[str, nn.Module]
    """Part -> model, where their own weights are trained."""
    accelerator: Accelerator
    text_length: int

    def encode(self, captions: Sequence[str]) -> list[dict[str, Tensor]]:
        """What the encoders give for each caption, as they are now, under the autocast of the denoiser."""
        with self.accelerator.autocast():
            return self.stack.states(captions, self.text_length)


def load_trainable_text(inputs: Inputs, accelerator: Accelerator) -> TrainableText:
    """The encoders, whole or frozen but for a LoRA in the layers that the family names."""
    return _load_whole(inputs, accelerator) if inputs.full else _load_with_lora(inputs, accelerator)


def _load_whole(inputs: Inputs, accelerator: Accelerator) -> TrainableText:
    """In the format of the denoiser's weights, which are trained too."""
    training = inputs.cfg.training
    loading = replace(inputs.text_loading, dtype=denoiser_dtype(training, inputs.dtype))
    stack = inputs.code.load_text(inputs.base, loading)
    module, _ = stack.trained()
    module.train()
    if training.gradient_checkpointing:
        recompute(module)
    return TrainableText(
        stack=stack,
        lora=None,
        layers={},
        whole=clips_by_part(stack, inputs.family),
        accelerator=accelerator,
        text_length=inputs.plan.text_length,
    )


def _load_with_lora(inputs: Inputs, accelerator: Accelerator) -> TrainableText:
    cfg = inputs.cfg
    stack = inputs.code.load_text(inputs.base, inputs.text_loading)
    module, idle = stack.trained()
    targets = find_targets(module, inputs.family.text_targets, idle)
    sizes = linear_layers(module)
    lora = inject(
        module,
        targets,
        rank=cfg.network.network_dim,
        alpha=cfg.network.network_alpha,
        dropout=cfg.network.network_dropout,
        rank_dropout=cfg.network.rank_dropout,
        module_dropout=cfg.network.module_dropout,
        seed=cfg.training.seed,
        kind=cfg.network.network_type,
        factor=cfg.network.lokr_factor,
        cast=inputs.precision == "no",
        device=inputs.device,
    )
    # LoRA dropout and checkpointing act in train mode alone, and CLIP has nothing else that differs there
    module.train()
    if cfg.training.gradient_checkpointing:
        recompute(module)
    return TrainableText(
        stack=stack,
        lora=lora,
        layers={path: sizes[path] for path in targets},
        whole={},
        accelerator=accelerator,
        text_length=inputs.plan.text_length,
    )


def recompute(module: nn.Module) -> None:
    """Let every transformers model in `module` compute its layers a second time in the backward pass."""
    for part in module.modules():
        # the newer name first
        enable = getattr(part, "activation_checkpointing_enable", None)
        enable = enable or getattr(part, "gradient_checkpointing_enable", None)
        if enable is not None:
            enable({"use_reentrant": False})
