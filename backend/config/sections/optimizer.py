"""Declares [optimizer]: optimizer, learning rate and its schedule."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from backend.config.declare import Section, setting
from backend.config.sections.values import keyword_table, name_or_class_path

OPTIMIZER_CLASSES = {
    "adamw": "torch.optim.AdamW",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit",
    "paged_adamw8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "paged_adamw": "bitsandbytes.optim.PagedAdamW",
    "adafactor": "torch.optim.Adafactor",
    "came": "pytorch_optimizer.CAME",
    "lion": "pytorch_optimizer.Lion",
    "lion8bit": "bitsandbytes.optim.Lion8bit",
    "paged_lion8bit": "bitsandbytes.optim.PagedLion8bit",
    "prodigy": "pytorch_optimizer.Prodigy",
    "adamw_schedulefree": "pytorch_optimizer.ScheduleFreeAdamW",
    "radam_schedulefree": "pytorch_optimizer.ScheduleFreeRAdam",
    "adam": "torch.optim.Adam",
    "sgd": "torch.optim.SGD",
    "rmsprop": "torch.optim.RMSprop",
}
OPTIMIZERS = tuple(OPTIMIZER_CLASSES)
SCHEDULE_FREE = ("adamw_schedulefree", "radam_schedulefree")
OWN_RATE = ("prodigy",)
SCHEDULERS = ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex")

_Beta = Annotated[float, Field(ge=0, lt=1)]


def finds_rate(name: str) -> bool:
    """Whether an optimizer, by name or class path, finds its rate by itself: one for all weights."""
    return any(word in name.lower() for word in (*OWN_RATE, "dadapt"))


def is_schedule_free(name: str) -> bool:
    """Whether an optimizer, by name or class path, trains at other weights than those that are used."""
    return "schedulefree" in name.lower()


class OptimizerSection(Section):
    """Optimizer, learning rate and its schedule."""

    optimizer: Annotated[str, AfterValidator(name_or_class_path(OPTIMIZERS, "optimizer"))] = setting(
        "adamw",
        suggestions=OPTIMIZERS,
        label="Optimizer",
        help="A name from the list, or the import path of a class that is installed here (package.Class). adamw is "
        "the safe choice. adamw8bit needs a quarter of its state, adafactor almost none. The paged ones move "
        "their state to RAM when the GPU is full. prodigy finds the learning rate itself: set the learning "
        "rate to 1. The schedulefree ones need no scheduler: set it to constant. Lion needs a third to a tenth "
        "of AdamW's learning rate. Upper and lower case are the same.",
        aliases=("optimizer_type", "optim", "optimizer_name"),
        basic=True,
    )
    optimizer_args: Annotated[dict[str, Any], AfterValidator(keyword_table)] = setting(
        dict,
        label="Optimizer arguments",
        help="Further arguments for the optimizer, such as amsgrad = true; in a file as a table, { amsgrad = true "
        "}. Learning rate, betas, eps and weight decay have fields of their own: set them there.",
        aliases=("optimizer_kwargs", "optimizer_params", "optimizer_config"),
        advanced=True,
    )
    learning_rate: float = setting(
        1e-4,
        ge=0,
        le=1000,
        label="Learning rate",
        help="How far each step moves the weights. 1e-4 is good for most LoRAs; halve it when samples break down, "
        "double it when nothing is learned. prodigy finds its own rate and needs 1.",
        aliases=("lr", "unet_lr", "transformer_lr", "base_lr", "denoiser_lr"),
        basic=True,
    )
    text_encoder_lr: float | None = setting(
        None,
        ge=0,
        le=1000,
        label="Text encoder learning rate",
        help="Learning rate of the text encoders where they are trained; the scheduler changes it too. Empty: the "
        "learning rate of the run. A half to a tenth of that is usual.",
        aliases=("te_lr", "learning_rate_te", "text_encoder_learning_rate", "te_learning_rate", "learning_rate_te1"),
    )
    weight_decay: float = setting(
        0.01,
        ge=0,
        le=10,
        label="Weight decay",
        help="Moves the weights a little towards zero in each step. 0 is off.",
        aliases=("adam_weight_decay", "wd", "optimizer_weight_decay"),
        advanced=True,
    )
    betas: list[_Beta] = setting(
        lambda: [0.9, 0.999],
        min_length=2,
        max_length=2,
        label="Betas",
        help="How long optimizers like Adam remember gradients and their squares.",
        aliases=("adam_betas", "adam_beta1", "adam_beta2", "beta1", "beta2"),
        advanced=True,
    )
    eps: float = setting(
        1e-8,
        gt=0,
        le=1,
        label="Epsilon",
        help="Keeps optimizers like Adam from dividing by zero.",
        aliases=("adam_epsilon", "epsilon", "adam_eps"),
        advanced=True,
    )
    max_grad_norm: float = setting(
        1.0,
        ge=0,
        le=1e6,
        label="Max grad norm",
        help="Gradients longer than this are clipped to it, so that one unusual image can't damage the training. 0 "
        "turns clipping off.",
        aliases=("clip_grad_norm", "gradient_clipping", "grad_clip", "max_norm"),
        advanced=True,
    )
    fused_backward: bool = setting(
        False,
        label="Fused backward pass",
        help="Full fine-tuning: each weight is changed in the backward pass as soon as its gradient is there, and the "
        "gradient is freed at once, so that all gradients never lie in memory together. The result is that of a "
        "plain step, but max grad norm limits the gradient of each tensor by itself. Not possible with gradient "
        "accumulation.",
        aliases=("fused_backward_pass", "fused_optimizer_step", "optimizer_in_backward", "blockwise_fused_optimizers"),
    )
    lr_scheduler: Annotated[str, AfterValidator(name_or_class_path(SCHEDULERS, "scheduler"))] = setting(
        "cosine",
        suggestions=SCHEDULERS,
        label="LR scheduler",
        help="How the learning rate changes during the run. constant: it stays the same. linear and cosine: it "
        "falls to the minimum. cosine_with_restarts: the same several times. polynomial: it falls with a "
        "power. rex: it falls late. A class path (package.Class) is possible too.",
        aliases=("lr_scheduler_type", "scheduler", "learning_rate_scheduler", "lr_schedule"),
        basic=True,
    )
    lr_warmup: float = setting(
        0.05,
        ge=0,
        le=1e9,
        unit="share or steps",
        label="Warm-up steps",
        help="The learning rate rises from 0 over this first part of the run. Below 1 it is a share of all steps "
        "(0.05 is 5 %), from 1 on a number of steps. 0 starts at the full rate.",
        aliases=("lr_warmup_steps", "warmup_steps", "lr_warmup_ratio", "warmup_ratio", "learning_rate_warmup_steps"),
        basic=True,
    )
    lr_scheduler_num_cycles: int = setting(
        1,
        ge=1,
        le=10000,
        label="LR number of cycles",
        help="How often cosine_with_restarts starts again at the full learning rate. Other schedulers ignore it.",
        aliases=("lr_scheduler_cycles", "num_cycles", "lr_num_cycles", "learning_rate_cycles"),
        advanced=True,
    )
    lr_scheduler_power: float = setting(
        1.0,
        gt=0,
        le=100,
        label="LR power",
        help="Power of the polynomial scheduler: 1 is a straight line, 2 falls fast at first. Other schedulers "
        "ignore it.",
        aliases=("lr_power", "polynomial_power"),
        advanced=True,
    )
    lr_scheduler_min_lr_ratio: float = setting(
        0.0,
        ge=0,
        le=1,
        unit="share",
        label="Minimum LR ratio",
        help="Schedulers that fall end at this share of the learning rate. 0.1 keeps a tenth until the last step.",
        aliases=("min_lr_ratio", "lr_end", "eta_min", "min_lr", "learning_rate_min_factor"),
        advanced=True,
    )
