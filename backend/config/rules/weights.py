"""Rules about what moves the weights and what they are kept in: optimizer, number formats, checkpointing, memory."""

from __future__ import annotations

from backend.config.checkpointing import PARTITIONING
from backend.config.layer_patterns import FACTORED
from backend.config.rules.rule import Rule, no_effect
from backend.config.schema import by_path
from backend.config.sections.optimizer import OPTIMIZERS, OWN_RATE, SCHEDULE_FREE, finds_rate, is_schedule_free

_OWN_FIELDS = {"lr", "weight_decay", "betas", "eps"}


def _sixteen_bit(weights: str, mixed: str) -> bool:
    return {weights, mixed} == {"bf16", "fp16"}


def _loraplus(name: str) -> tuple[Rule, Rule]:
    """What can't be trained with two rates. name: of the ratio."""
    path = f"network.{name}"
    return (
        Rule(
            (path, "network.network_type"),
            lambda ratio, kind: ratio not in (None, 1) and kind in FACTORED,
            f"{name} is for the two matrices of a LoRA, and this run trains {{network_type}}",
            f"Take {name} out, or set network_type to lora or dora",
        ),
        Rule(
            (path, "optimizer.optimizer"),
            lambda ratio, name: ratio not in (None, 1) and finds_rate(name),
            f"{{optimizer}} finds one rate for all weights, and {name} asks for two",
            f"Take {name} out, or choose another optimizer, such as adamw",
        ),
    )


_ONE_RATE = "{optimizer} finds one rate for all weights, and"

# What asks an optimizer that finds its rate by itself for a second one.
ONE_RATE_RULES: tuple[Rule, ...] = (
    Rule(
        (
            "optimizer.text_encoder_lr",
            "optimizer.optimizer",
            "optimizer.learning_rate",
            "network.train_text_encoder",
        ),
        lambda own, name, rate, trained: trained and own not in (None, rate) and finds_rate(name),
        f"{_ONE_RATE} text_encoder_lr {{text_encoder_lr:g}} is another than learning_rate {{learning_rate:g}}",
        "Take text_encoder_lr out, or choose another optimizer, such as adamw",
    ),
    Rule(
        ("network.layer_settings", "optimizer.optimizer", "optimizer.learning_rate"),
        lambda rows, name, rate: (
            [number for number, row in enumerate(rows or []) if row.learning_rate not in (None, rate)]
            if finds_rate(name)
            else []
        ),
        f"{_ONE_RATE} this row asks for another than learning_rate {{learning_rate:g}}",
        "Leave the row's learning_rate empty, or choose another optimizer, such as adamw",
        column="learning_rate",
    ),
)

WEIGHT_RULES: tuple[Rule, ...] = (
    *ONE_RATE_RULES,
    # optimizer
    Rule(
        ("optimizer.learning_rate", "network.train_text_encoder", "optimizer.text_encoder_lr"),
        lambda rate, text, text_rate: rate == 0 and not (text and text_rate),
        "at a learning rate of 0 nothing is learnt",
        "Set learning_rate to 1e-4, or to what your optimizer wants",
        "warning",
    ),
    no_effect(
        "optimizer.text_encoder_lr",
        "network.train_text_encoder",
        (True,),
        "the text encoders are not trained",
    ),
    no_effect(
        "network.loraplus_text_encoder_lr_ratio",
        "network.train_text_encoder",
        (True,),
        "the text encoders are not trained",
    ),
    Rule(
        ("optimizer.learning_rate", "optimizer.optimizer"),
        lambda rate, name: name in OWN_RATE and 0 < rate < 0.1,
        "{optimizer} finds the rate by itself and multiplies it by learning_rate: {learning_rate:g} all but stops it",
        "Set learning_rate to 1",
        "warning",
    ),
    Rule(
        ("optimizer.learning_rate", "optimizer.optimizer"),
        lambda rate, name: rate >= 0.1 and name in OPTIMIZERS and name not in (*OWN_RATE, "sgd"),
        "a learning rate of {learning_rate:g} is far too high for {optimizer}",
        "Set learning_rate to 1e-4, or choose the optimizer prodigy, which wants 1",
        "warning",
    ),
    Rule(
        ("optimizer.lr_scheduler", "optimizer.optimizer"),
        lambda scheduler, name: name in SCHEDULE_FREE and scheduler != "constant",
        "{optimizer} takes the place of a falling rate, and the scheduler {lr_scheduler} slows it down twice",
        "Set lr_scheduler to constant",
        "warning",
    ),
    Rule(
        ("training.ema", "optimizer.optimizer"),
        lambda ema, name: ema and "schedulefree" in name.lower(),
        "{optimizer} averages its weights itself, and ema would do so once more",
        "Turn ema off, or choose another optimizer, such as adamw",
    ),
    no_effect("training.ema_decay", "training.ema", (True,), "no mean of the weights is kept"),
    Rule(
        ("optimizer.optimizer_args",),
        lambda args: any(name in _OWN_FIELDS and not (name == "eps" and isinstance(args[name], list)) for name in args),
        "optimizer_args sets what has a field of its own, and rules over it",
        "Use learning_rate, weight_decay, betas and eps, and take them out of optimizer_args",
        "warning",
    ),
    no_effect(
        "optimizer.lr_scheduler_num_cycles",
        "optimizer.lr_scheduler",
        ("cosine_with_restarts",),
        "only cosine_with_restarts has restarts",
    ),
    no_effect("optimizer.lr_scheduler_power", "optimizer.lr_scheduler", ("polynomial",), "only polynomial has a power"),
    Rule(
        ("optimizer.lr_scheduler_min_lr_ratio", "optimizer.lr_scheduler"),
        lambda ratio, scheduler: ratio > 0 and scheduler == "constant",
        "lr_scheduler_min_lr_ratio has no effect: a constant rate never falls",
        "Choose another lr_scheduler, or take lr_scheduler_min_lr_ratio out",
        "warning",
    ),
    Rule(
        ("training.mixed_precision", "model.weight_dtype"),
        lambda mixed, weights: _sixteen_bit(weights, mixed),
        "mixed_precision {mixed_precision} and weight_dtype {weight_dtype} are two different 16-bit formats",
        "Set both to bf16, or one of them to auto",
    ),
    Rule(
        ("training.mixed_precision", "model.weight_dtype"),
        lambda mixed, weights: mixed == "no" and weights == "fp16",
        "fp16 weights without loss scaling overflow easily",
        "Set training.mixed_precision to fp16, or model.weight_dtype to bf16 or fp32",
        "warning",
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
            ("network_dropout", "each layer then has an input of its own"),
            ("rank_dropout", "it draws for each layer by itself"),
            ("module_dropout", "it draws for each layer by itself"),
        )
    ),
    # checkpointing
    no_effect(
        "memory.checkpointing_kind",
        "training.gradient_checkpointing",
        (True,),
        "gradient checkpointing is off",
    ),
    Rule(
        ("memory.activation_memory_budget", "compile.compile"),
        lambda budget, on: budget is not None and not on,
        "activation_memory_budget needs compile: it is the compiler that chooses what to keep",
        "Turn compile.compile on, or take activation_memory_budget out and use training.gradient_checkpointing",
    ),
    *(
        Rule(
            ("memory.activation_memory_budget", f"network.{name}"),
            lambda budget, dropout: budget is not None and dropout > 0,
            f"activation_memory_budget can't be used with {name}: torch's compiler may draw the dropout anew when it "
            "recomputes, so that gradients would not belong to the loss",
            f"Take activation_memory_budget out and turn training.gradient_checkpointing on, or set {name} to 0",
        )
        for name in ("network_dropout", "rank_dropout", "module_dropout")
    ),
    Rule(
        (
            "memory.activation_memory_budget",
            "compile.compile",
            "training.gradient_checkpointing",
            "memory.checkpointing_kind",
        ),
        lambda budget, on, checkpointing, kind: budget is not None and on and checkpointing and kind != "auto",
        "activation_memory_budget saves next to nothing under checkpointing_kind {checkpointing_kind}",
        "Set memory.checkpointing_kind to auto, or take activation_memory_budget out",
        "warning",
    ),
    Rule(
        ("memory.activation_memory_budget", "compile.compile", "compile.compile_backend"),
        lambda budget, on, backend: budget is not None and on and backend not in PARTITIONING,
        "activation_memory_budget has no effect: {compile_backend} keeps what the model keeps",
        "Set compile.compile_backend to inductor, or take activation_memory_budget out",
        "warning",
    ),
    # quantised base
    Rule(
        ("memory.base_compute", "memory.base_quantization"),
        lambda compute, kind: compute != "bf16" and kind not in ("none", compute),
        "{base_compute} products need weights kept as {base_compute}, not {base_quantization}",
        "Set base_quantization to {base_compute}, or base_compute to bf16",
    ),
    # swap, and kinds of networks
    Rule(
        ("memory.swap_ring", "memory.blocks_to_swap"),
        lambda ring, count: ring != by_path()["memory.swap_ring"].default and not count,
        "swap_ring has no effect: no blocks are swapped",
        "Set blocks_to_swap above 0, or take swap_ring out",
        "warning",
    ),
    Rule(
        ("memory.blocks_to_swap", "memory.swap_ring"),
        lambda count, ring: 0 < count <= ring,
        "swapping {blocks_to_swap} saves nothing: the card has a buffer for each of {swap_ring}, which stay there",
        "Set blocks_to_swap above {swap_ring}, or to 0",
        "warning",
    ),
    Rule(
        ("memory.swap_pinned_limit_gb", "memory.blocks_to_swap"),
        lambda limit, count: limit is not None and not count,
        "swap_pinned_limit_gb has no effect: no blocks are swapped",
        "Set blocks_to_swap above 0, or take swap_pinned_limit_gb out",
        "warning",
    ),
    Rule(
        ("network.base_weights_multiplier", "network.base_weights"),
        lambda numbers, files: bool(numbers and files) and len(numbers) != len(files),
        "base_weights_multiplier has not as many numbers as base_weights has files",
        "Write one number for each file, in the same order, or take base_weights_multiplier out: each then counts as 1",
    ),
    Rule(
        ("network.base_weights_multiplier", "network.base_weights"),
        lambda numbers, files: numbers is not None and files is None,
        "base_weights_multiplier has no effect: nothing is merged into the base",
        "Set network.base_weights, or take base_weights_multiplier out",
        "warning",
    ),
    no_effect("network.lokr_factor", "network.network_type", ("lokr",), "the network is no LoKr"),
    Rule(
        ("saving.save_layout", "network.network_type"),
        lambda layout, kind: layout == "diffusers" and kind in FACTORED,
        "diffusers has no layout for {network_type}",
        "Set saving.save_layout to kohya, which LyCORIS' files have",
    ),
    Rule(
        ("network.lora_fused", "network.network_type"),
        lambda fused, kind: fused and kind in FACTORED,
        "lora_fused joins the layers of a LoRA, which {network_type} has not",
        "Set network.lora_fused to false",
    ),
    Rule(
        ("network.rank_dropout", "network.network_type"),
        lambda dropout, kind: dropout > 0 and kind in FACTORED,
        "rank_dropout leaves out ranks of a LoRA, and the factors of a {network_type} have none of these",
        "Set rank_dropout to 0 and use module_dropout, or set network_type to lora or dora",
    ),
    Rule(
        ("network.scale_weight_norms", "network.network_type"),
        lambda limit, kind: limit is not None and kind != "lora",
        "scale_weight_norms scales the two matrices of a LoRA back, and this run trains {network_type}",
        "Take scale_weight_norms out, or set network_type to lora",
    ),
    Rule(
        ("network.scale_weight_norms", "optimizer.optimizer"),
        lambda limit, name: limit is not None and is_schedule_free(name),
        "{optimizer} goes on from averages of its own, which scale_weight_norms does not reach",
        "Take scale_weight_norms out, or choose another optimizer, such as adamw",
    ),
    *_loraplus("loraplus_lr_ratio"),
    *_loraplus("loraplus_text_encoder_lr_ratio"),
    Rule(
        ("network.conv_dim", "network.network_type"),
        lambda rank, kind: rank is not None and kind in FACTORED,
        "conv_dim gives convolutions larger than one pixel a LoRA, and this run trains {network_type}",
        "Set network.network_type to lora or dora, or take conv_dim out",
    ),
    Rule(
        ("network.conv_alpha", "network.conv_dim"),
        lambda alpha, rank: alpha is not None and rank is None,
        "conv_alpha has no effect: conv_dim is not set",
        "Set conv_dim, or take conv_alpha out",
        "warning",
    ),
)
