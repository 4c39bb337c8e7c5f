"""Lists rules about the LoRA: its kind, its size, dropout and the files it begins with."""

from __future__ import annotations

from backend.config.layer_patterns import FACTORED
from backend.config.rules.rule import Rule, no_effect
from backend.config.sections.optimizer import finds_rate, is_schedule_free


def _loraplus(name: str) -> tuple[Rule, Rule]:
    """What can't be trained with two rates. name: of the ratio."""
    path = f"network.{name}"
    return (
        Rule(
            (path, "network.network_type"),
            lambda ratio, kind: ratio not in (None, 1) and kind in FACTORED,
            f"{name} works with a LoRA only, and this run trains {{network_type}}",
            f"Remove {name}, or set network_type to lora or dora",
        ),
        Rule(
            (path, "optimizer.optimizer"),
            lambda ratio, name: ratio not in (None, 1) and finds_rate(name),
            f"{{optimizer}} finds one rate for all weights, and {name} needs two",
            f"Remove {name}, or choose another optimizer, such as adamw",
        ),
    )


NETWORK_RULES: tuple[Rule, ...] = (
    no_effect(
        "network.loraplus_text_encoder_lr_ratio",
        "network.train_text_encoder",
        (True,),
        "the text encoders are not trained",
    ),
    Rule(
        ("network.lora_weight_dtype", "training.mixed_precision"),
        lambda weights, mixed: weights == "bf16" and mixed == "fp16",
        "lora_weight_dtype bf16 and mixed_precision fp16 are two different 16-bit formats",
        "Set lora_weight_dtype to fp32, or mixed_precision to bf16",
    ),
    *(
        Rule(
            ("network.lora_fused", f"network.{name}"),
            lambda fused, dropout: fused and dropout > 0,
            f"lora_fused can't be used with {name}: {why}",
            f"Turn lora_fused off, or set {name} to 0",
        )
        for name, why in (
            ("network_dropout", "each layer then has another input"),
            ("rank_dropout", "it is chosen at random for each layer"),
            ("module_dropout", "it is chosen at random for each layer"),
        )
    ),
    Rule(
        ("memory.swap_pinned_limit_gb", "memory.blocks_to_swap"),
        lambda limit, count: limit is not None and not count,
        "swap_pinned_limit_gb has no effect: no blocks are swapped",
        "Set blocks_to_swap above 0, or remove swap_pinned_limit_gb",
        "warning",
    ),
    Rule(
        ("network.base_weights_multiplier", "network.base_weights"),
        lambda numbers, files: bool(numbers and files) and len(numbers) != len(files),
        "base_weights_multiplier and base_weights differ in length",
        "Write one number for each file, in the same order, or remove base_weights_multiplier: each then counts as 1",
    ),
    Rule(
        ("network.base_weights_multiplier", "network.base_weights"),
        lambda numbers, files: numbers is not None and files is None,
        "base_weights_multiplier has no effect: nothing is merged into the base",
        "Set network.base_weights, or remove base_weights_multiplier",
        "warning",
    ),
    no_effect("network.lokr_factor", "network.network_type", ("lokr",), "network_type is not lokr"),
    Rule(
        ("saving.save_layout", "network.network_type"),
        lambda layout, kind: layout == "diffusers" and kind in FACTORED,
        "the diffusers layout can't hold {network_type}",
        "Set saving.save_layout to kohya, which LyCORIS uses too",
    ),
    Rule(
        ("network.lora_fused", "network.network_type"),
        lambda fused, kind: fused and kind in FACTORED,
        "lora_fused works with a LoRA only, and this run trains {network_type}",
        "Set network.lora_fused to false",
    ),
    Rule(
        ("network.rank_dropout", "network.network_type"),
        lambda dropout, kind: dropout > 0 and kind in FACTORED,
        "rank_dropout works with the ranks of a LoRA, which {network_type} does not have",
        "Set rank_dropout to 0 and use module_dropout, or set network_type to lora or dora",
    ),
    Rule(
        ("network.scale_weight_norms", "network.network_type"),
        lambda limit, kind: limit is not None and kind != "lora",
        "scale_weight_norms works with a LoRA only, and this run trains {network_type}",
        "Remove scale_weight_norms, or set network_type to lora",
    ),
    Rule(
        ("network.scale_weight_norms", "optimizer.optimizer"),
        lambda limit, name: limit is not None and is_schedule_free(name),
        "{optimizer} continues from its own averages, which scale_weight_norms does not change",
        "Remove scale_weight_norms, or choose another optimizer, such as adamw",
    ),
    *_loraplus("loraplus_lr_ratio"),
    *_loraplus("loraplus_text_encoder_lr_ratio"),
    Rule(
        ("network.conv_dim", "network.network_type"),
        lambda rank, kind: rank is not None and kind in FACTORED,
        "conv_dim works with a LoRA only, and this run trains {network_type}",
        "Set network.network_type to lora or dora, or remove conv_dim",
    ),
    Rule(
        ("network.conv_alpha", "network.conv_dim"),
        lambda alpha, rank: alpha is not None and rank is None,
        "conv_alpha has no effect: conv_dim is not set",
        "Set conv_dim, or remove conv_alpha",
        "warning",
    ),
)
