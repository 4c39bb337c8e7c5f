"""Lists rules about the optimizer, the learning rate and its schedule."""

from __future__ import annotations

from backend.config.rules.rule import Rule, no_effect
from backend.config.sections.optimizer import OPTIMIZERS, OWN_RATE, SCHEDULE_FREE, finds_rate
from backend.config.sections.training import step_limit

_OWN_FIELDS = {"lr", "weight_decay", "betas", "eps"}


_ONE_RATE = "{optimizer} finds one rate for all weights, but"

# Settings that give a second rate to an optimizer that finds one rate itself.
ONE_RATE_RULES: tuple[Rule, ...] = (
    Rule(
        (
            "optimizer.text_encoder_lr",
            "optimizer.optimizer",
            "optimizer.learning_rate",
            "network.train_text_encoder",
        ),
        lambda own, name, rate, trained: trained and own not in (None, rate) and finds_rate(name),
        f"{_ONE_RATE} text_encoder_lr {{text_encoder_lr:g}} differs from learning_rate {{learning_rate:g}}",
        "Remove text_encoder_lr, or choose another optimizer, such as adamw",
    ),
    Rule(
        ("network.layer_settings", "optimizer.optimizer", "optimizer.learning_rate"),
        lambda rows, name, rate: (
            [number for number, row in enumerate(rows or []) if row.learning_rate not in (None, rate)]
            if finds_rate(name)
            else []
        ),
        f"{_ONE_RATE} the rate of this row differs from learning_rate {{learning_rate:g}}",
        "Leave the row's learning_rate empty, or choose another optimizer, such as adamw",
        column="learning_rate",
    ),
)
OPTIMIZER_RULES: tuple[Rule, ...] = (
    *ONE_RATE_RULES,
    Rule(
        ("optimizer.learning_rate", "network.train_text_encoder", "optimizer.text_encoder_lr"),
        lambda rate, text, text_rate: rate == 0 and not (text and text_rate),
        "with a learning rate of 0 nothing is trained",
        "Set learning_rate to 1e-4, or to the rate that your optimizer needs",
        "warning",
    ),
    no_effect(
        "optimizer.text_encoder_lr",
        "network.train_text_encoder",
        (True,),
        "the text encoders are not trained",
    ),
    Rule(
        ("optimizer.learning_rate", "optimizer.optimizer"),
        lambda rate, name: name in OWN_RATE and 0 < rate < 0.1,
        "{optimizer} finds the rate itself and multiplies it by learning_rate: {learning_rate:g} trains almost nothing",
        "Set learning_rate to 1",
        "warning",
    ),
    Rule(
        ("optimizer.learning_rate", "optimizer.optimizer"),
        lambda rate, name: rate >= 0.1 and name in OPTIMIZERS and name not in (*OWN_RATE, "sgd"),
        "a learning rate of {learning_rate:g} is far too high for {optimizer}",
        "Set learning_rate to 1e-4, or choose the optimizer prodigy, which needs 1",
        "warning",
    ),
    Rule(
        ("optimizer.lr_scheduler", "optimizer.optimizer"),
        lambda scheduler, name: name in SCHEDULE_FREE and scheduler != "constant",
        "{optimizer} replaces a scheduler, and with lr_scheduler {lr_scheduler} the rate falls twice",
        "Set lr_scheduler to constant",
        "warning",
    ),
    Rule(
        ("optimizer.optimizer_args",),
        lambda args: any(name in _OWN_FIELDS and not (name == "eps" and isinstance(args[name], list)) for name in args),
        "optimizer_args sets values that have a setting of their own, and replaces them",
        "Use learning_rate, weight_decay, betas and eps, and remove them from optimizer_args",
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
        "Choose another lr_scheduler, or remove lr_scheduler_min_lr_ratio",
        "warning",
    ),
    Rule(
        ("optimizer.lr_warmup",),
        lambda warmup: warmup >= 1 and not float(warmup).is_integer(),
        "{lr_warmup} is neither a share below 1 nor a whole number of steps",
        "Write a share such as 0.05, or whole steps such as 100",
    ),
    Rule(
        ("optimizer.lr_warmup", "training.max_train_steps", "training.max_train_epochs"),
        lambda warmup, steps, epochs: (limit := step_limit(steps, epochs)) is not None and 1 <= warmup >= limit,
        "the warm-up of {lr_warmup:g} steps is as long as the run: the full learning rate is never reached",
        "Set lr_warmup to a share such as 0.05, or to fewer steps",
        "warning",
    ),
)
