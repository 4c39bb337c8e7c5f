"""Lists what values of other programs are called here: optimizers, schedules, ways to draw noise levels. Data only.

A value with a text behind it is not the same here; the text says how it differs.
"""

from __future__ import annotations

OPTIMIZERS: dict[str, str] = {
    "PagedAdamW": "paged_adamw", "AdamWScheduleFree": "adamw_schedulefree", "RAdamScheduleFree": "radam_schedulefree",
    "AdaFactor": "adafactor", "SGDNesterov": "sgd", "SGDNesterov8bit": "bitsandbytes.optim.SGD8bit",
    "PagedAdamW32bit": "bitsandbytes.optim.PagedAdamW32bit", "SGDScheduleFree": "pytorch_optimizer.ScheduleFreeSGD",
}  # fmt: skip
SCHEDULERS: dict[str, tuple[str, str]] = {
    "constant_with_warmup": ("constant", ""),
    "cosine_with_min_lr": ("cosine", ""),
    "adafactor": ("constant", "Adafactor's own schedule is not supported; the rate stays the same"),
    "warmup_stable_decay": ("linear", "it keeps the rate and then falls; linear falls from the start"),
    "inverse_sqrt": ("polynomial", "the inverse square root is not supported; polynomial is used, which falls to 0"),
    "rex": ("rex", "halfway the rate is two thirds; in the other program nine tenths"),
    "piecewise_constant": ("constant", "a rate in steps is not supported"),
}
SAMPLINGS: dict[str, tuple[str, str]] = {
    "qinglong_flux": ("flux_shift", "this mixture is not supported; its largest part is used"),
    "ideogram4_shift": ("flux_shift", "Ideogram's shift by size is not supported; FLUX's is used"),
    "krea2_shift": ("flux_shift", "Krea's shift by size is not supported; FLUX's is used"),
    "flux2_shift": ("flux_shift", "FLUX.2's shift by size is not supported; FLUX's is used"),
}
