"""Lists rules about the length, the precision and the weight average of a run."""

from __future__ import annotations

from backend.config.rules.rule import Rule, no_effect


def _sixteen_bit(weights: str, mixed: str) -> bool:
    return {weights, mixed} == {"bf16", "fp16"}


TRAINING_RULES: tuple[Rule, ...] = (
    Rule(
        ("training.max_train_steps", "training.max_train_epochs"),
        lambda steps, epochs: steps is not None and epochs is not None,
        "the length of the run is set twice: {max_train_steps} steps and {max_train_epochs} epochs",
        "Leave max_train_steps or max_train_epochs empty",
    ),
    Rule(
        ("training.ema", "optimizer.optimizer"),
        lambda ema, name: ema and "schedulefree" in name.lower(),
        "{optimizer} averages its weights itself, and ema would average them a second time",
        "Turn ema off, or choose another optimizer, such as adamw",
    ),
    no_effect("training.ema_decay", "training.ema", (True,), "ema is off"),
    Rule(
        ("training.mixed_precision", "model.weight_dtype"),
        lambda mixed, weights: _sixteen_bit(weights, mixed),
        "mixed_precision {mixed_precision} and weight_dtype {weight_dtype} are two different 16-bit formats",
        "Set both to bf16, or one of them to auto",
    ),
    Rule(
        ("training.mixed_precision", "model.weight_dtype"),
        lambda mixed, weights: mixed == "no" and weights == "fp16",
        "fp16 weights can overflow without loss scaling",
        "Set training.mixed_precision to fp16, or model.weight_dtype to bf16 or fp32",
        "warning",
    ),
    Rule(
        ("training.num_processes", "optimizer.fused_backward"),
        lambda processes, fused: processes > 1 and fused,
        "fused_backward uses each gradient at once, and {num_processes} processes take the mean of theirs first",
        "Turn optimizer.fused_backward off, or set num_processes to 1",
    ),
    Rule(
        ("training.num_processes", "memory.blocks_to_swap"),
        lambda processes, blocks: processes > 1 and blocks > 0,
        "each of the {num_processes} processes keeps a copy of the {blocks_to_swap} swapped blocks in RAM",
        "Have RAM for all of them, or set blocks_to_swap to 0",
        "warning",
    ),
)
