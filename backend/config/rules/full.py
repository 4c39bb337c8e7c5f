"""Lists rules of full fine-tuning: settings that are a LoRA's alone, and what a trained base can't be."""

from __future__ import annotations

from typing import Any

from backend.config.rules.rule import Rule
from backend.config.schema import by_path
from backend.config.sections.optimizer import finds_rate, is_schedule_free
from backend.families.table import FAMILIES

_KIND = "training.kind"

# Settings of a LoRA that change nothing where there is none.
_WITHOUT_EFFECT = (
    *("network_dim", "network_alpha", "network_dropout", "rank_dropout", "module_dropout"),
    *("lora_weight_dtype", "lora_fused"),
)

# Settings that need one of those below, which is refused.
_OF_REFUSED = ("lokr_factor", "conv_alpha", "loraplus_text_encoder_lr_ratio")

# Setting -> why a run that trains the whole model can't have it, and what to do.
_REFUSED: dict[str, tuple[str, str]] = {
    "network.network_type": (
        "{network_type} is a kind of LoRA, and training kind full trains the model's own weights",
        "Set network_type to lora, or training.kind to lora",
    ),
    "network.scale_weight_norms": (
        "scale_weight_norms limits the change that a LoRA makes, and training kind full trains none",
        "Remove scale_weight_norms, or set training.kind to lora",
    ),
    "network.loraplus_lr_ratio": (
        "loraplus_lr_ratio is the rate of a LoRA's second matrix, and training kind full trains none",
        "Set loraplus_lr_ratio to 1, or training.kind to lora",
    ),
    "network.conv_dim": (
        "conv_dim is the rank of a LoRA, and training kind full trains the convolutions themselves",
        "Remove conv_dim, or set training.kind to lora",
    ),
    "network.network_weights": (
        "network_weights is a LoRA to continue, and training kind full trains none",
        "Choose it in network.base_weights, which merges it into the base model, or set training.kind to lora",
    ),
    "saving.keep_best": (
        "keep_best keeps a LoRA, and training kind full trains none",
        "Save every N steps and choose by the validation losses, or set training.kind to lora",
    ),
    "saving.average_checkpoints": (
        "average_checkpoints averages LoRA files, and training kind full saves none",
        "Turn on training.ema, which averages while it trains, or set training.kind to lora",
    ),
    "memory.base_quantization": (
        "weights in {base_quantization} can't be trained: their steps are smaller than the format can show",
        "Set base_quantization to none, or training.kind to lora",
    ),
}

LORA_ONLY = frozenset({f"network.{name}" for name in (*_WITHOUT_EFFECT, *_OF_REFUSED)}).union(
    _REFUSED, {"saving.save_layout"}
)
"""Settings that the page hides for full fine-tuning, unless somebody set them."""

FULL_ONLY = frozenset({"saving.model_layout", "training.full_weight_dtype", "optimizer.fused_backward"})
"""Settings that it hides for a LoRA."""


def _without_effect(path: str) -> Rule:
    name, default = path.rsplit(".", 1)[1], by_path()[path].default
    return Rule(
        (path, _KIND),
        lambda value, kind: kind == "full" and value != default,
        f"{name} has no effect: training kind full trains no LoRA",
        f"Remove {name}, or set training.kind to lora",
        "warning",
    )


def _refused(path: str, text: str, remedy: str) -> Rule:
    default: Any = by_path()[path].default
    return Rule((path, _KIND), lambda value, kind: kind == "full" and value != default, text, remedy)


def _tensors_alone(path: str, value: object, what: str, instead: str) -> Rule:
    """A setting that steps one tensor at a time needs an optimizer that can do so."""
    return Rule(
        (path, "optimizer.optimizer", _KIND),
        lambda current, name, kind: (
            kind == "full" and current == value and (finds_rate(name) or is_schedule_free(name))
        ),
        f"{{optimizer}} compares all weights with each other, and {what} moves them one by one",
        f"Choose another optimizer, such as adafactor or adamw, or {instead}",
    )


FULL_RULES: tuple[Rule, ...] = (
    Rule(
        ("optimizer.fused_backward", _KIND),
        lambda fused, kind: fused and kind != "full",
        "fused_backward saves the gradients of a whole model, and a LoRA's are small",
        "Turn fused_backward off, or set training.kind to full",
    ),
    Rule(
        ("optimizer.fused_backward", "training.gradient_accumulation_steps"),
        lambda fused, batches: fused and batches > 1,
        "fused_backward uses each gradient at once, and gradient accumulation sums those of "
        "{gradient_accumulation_steps} batches",
        "Set gradient_accumulation_steps to 1, or turn fused_backward off",
    ),
    Rule(
        ("optimizer.fused_backward", "training.mixed_precision"),
        lambda fused, mixed: fused and mixed == "fp16",
        "fused_backward uses gradients before the loss scaling of fp16 can be taken out of them",
        "Set training.mixed_precision to bf16, or turn fused_backward off",
    ),
    Rule(
        ("memory.blocks_to_swap", "optimizer.fused_backward", _KIND),
        lambda blocks, fused, kind: kind == "full" and blocks > 0 and not fused,
        "swapped blocks that are trained leave the GPU in the backward pass, and so have to be stepped there",
        "Turn optimizer.fused_backward on, or set blocks_to_swap to 0",
    ),
    Rule(
        ("memory.blocks_to_swap", "training.ema", _KIND),
        lambda blocks, ema, kind: kind == "full" and blocks > 0 and ema,
        "ema needs all trained weights on the GPU after each step, and swapped blocks are not there",
        "Turn ema off, or set blocks_to_swap to 0",
    ),
    Rule(
        ("memory.text_encoder_quantization", "network.train_text_encoder", _KIND),
        lambda kept, trained, kind: kind == "full" and trained and kept != "none",
        "text encoders in {text_encoder_quantization} can't be trained: their steps are smaller than the format shows",
        "Set text_encoder_quantization to none, or turn train_text_encoder off",
    ),
    _tensors_alone("optimizer.fused_backward", True, "fused_backward", "turn fused_backward off"),
    _tensors_alone("training.full_weight_dtype", "bf16", "full_weight_dtype bf16", "set full_weight_dtype to fp32"),
    Rule(
        ("training.full_weight_dtype", "training.mixed_precision", _KIND),
        lambda weights, mixed, kind: kind == "full" and weights == "bf16" and mixed == "fp16",
        "full_weight_dtype bf16 and mixed_precision fp16 are two different 16-bit formats",
        "Set full_weight_dtype to fp32, or mixed_precision to bf16",
    ),
    Rule(
        ("training.full_weight_dtype", _KIND),
        lambda weights, kind: weights == "bf16" and kind != "full",
        "full_weight_dtype has no effect: the base model is not trained",
        "Set network.lora_weight_dtype for the LoRA, or training.kind to full",
        "warning",
    ),
    Rule(
        ("model.weight_dtype", "training.full_weight_dtype", _KIND),
        lambda frozen, weights, kind: kind == "full" and frozen not in ("auto", weights),
        "weight_dtype {weight_dtype} is the format of VAE and text encoders: what is trained is kept in "
        "{full_weight_dtype}, as full_weight_dtype says",
        "Set training.full_weight_dtype for the trained weights, or weight_dtype to auto",
        "warning",
    ),
    *(_without_effect(f"network.{name}") for name in _WITHOUT_EFFECT),
    _without_effect("saving.save_layout"),
    *(_refused(path, text, remedy) for path, (text, remedy) in _REFUSED.items()),
    Rule(
        ("timesteps.train_experts", _KIND, "model.family"),
        lambda experts, kind, family: kind == "full" and experts == "both" and FAMILIES[family].experts is not None,
        "both experts in one run are trained as LoRAs, not with training kind full",
        "Set train_experts to high or low, or training.kind to lora",
    ),
    *(
        Rule(
            ("network.layer_settings", _KIND),
            lambda rows, kind, column=column: (
                [number for number, row in enumerate(rows or []) if getattr(row, column) is not None]
                if kind == "full"
                else []
            ),
            f"{column} of single layers is a LoRA's, and training kind full trains none",
            f"Leave {column} empty: rows may set the learning rate alone",
            column=column,
        )
        for column in ("dim", "alpha")
    ),
    Rule(
        ("sampling.prompts", _KIND),
        lambda rows, kind: [number for number, row in enumerate(rows) if kind == "full" and row.lora_scale != 1.0],
        "lora_scale can't be used with training kind full: the model has no LoRA to weaken",
        "Set lora_scale to 1",
        column="lora_scale",
    ),
    Rule(
        ("saving.model_layout", _KIND),
        lambda layout, kind: kind != "full" and layout != by_path()["saving.model_layout"].default,
        "model_layout has no effect: a LoRA is saved, not a whole model",
        "Remove model_layout, or set training.kind to full",
        "warning",
    ),
)
