"""Declares [training]: length and precision of a run."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting

DEFAULT_TRAIN_STEPS = 1600


def step_limit(max_train_steps: int | None, max_train_epochs: int | None) -> int | None:
    """Optimizer steps asked for; None when epochs rule, which only the plan can count."""
    if max_train_steps is None and max_train_epochs is None:
        return DEFAULT_TRAIN_STEPS
    return max_train_steps


class TrainingSection(Section):
    """Length and precision of the run."""

    kind: Literal["lora", "full"] = setting(
        "lora",
        label="Training kind",
        help="lora: trains a small network beside the frozen base model and saves it as a LoRA file. full: trains the "
        "weights of the denoiser themselves (full fine-tuning) and saves a whole model. It can learn more, and needs "
        "several times the memory and disk space. Settings of the LoRA then have no effect. A usual learning rate is "
        "1e-5, a tenth of that of a LoRA or less.",
        aliases=("training_kind", "training_type", "training_method", "full_finetune", "finetune", "train_type"),
        basic=True,
    )
    full_weight_dtype: Literal["fp32", "bf16"] = setting(
        "fp32",
        label="Trained weight precision",
        help="Format of the weights in full fine-tuning. bf16 halves the memory of weights and gradients: each step is "
        "computed in float32 and rounded up or down at random (stochastic rounding), so that small steps count in "
        "the mean. fp32 keeps every step exactly.",
        aliases=("full_bf16_training", "stochastic_rounding", "weight_precision", "trained_weight_dtype"),
    )
    max_train_steps: int | None = setting(
        None,
        ge=1,
        le=10**9,
        unit="steps",
        label="Max train steps",
        help="Length of the run in optimizer steps. Empty: 1600, unless epochs are set. 1000 to 2000 are enough for "
        "a subject with ten to fifty images.",
        aliases=("max_steps", "train_steps", "num_train_steps", "total_steps", "steps", "iterations"),
        basic=True,
    )
    max_train_epochs: int | None = setting(
        None,
        ge=1,
        le=10**6,
        unit="epochs",
        label="Max train epochs",
        help="Length of the run in passes over the data set, instead of steps. The plan shows how many steps this is.",
        aliases=("num_train_epochs", "epochs", "num_epochs", "epoch", "max_epochs"),
        basic=True,
    )
    gradient_accumulation_steps: int = setting(
        1,
        ge=1,
        le=10000,
        unit="batches",
        label="Gradient accumulation steps",
        help="Number of batches whose gradients are summed before the optimizer makes one step: the effect of a "
        "larger batch with the memory of a small one, in more time.",
        aliases=("gradient_accumulation", "grad_accum_steps", "accumulation_steps"),
        basic=True,
    )
    num_processes: int = setting(
        1,
        ge=1,
        le=16,
        label="Number of GPUs",
        help="Number of processes that train together, each on a GPU of its own: each trains another batch at the same "
        "time, and a step takes the mean of all. Batch size, accumulation and this number multiply to the images of a "
        "step, so that epochs need fewer steps; a higher learning rate may fit. Each GPU holds the whole model, and "
        "needs the memory of a run with one.",
        aliases=("multi_gpu_processes", "world_size", "gpu_count", "n_gpus"),
    )
    mixed_precision: Literal["auto", "bf16", "fp16", "no"] = setting(
        "auto",
        label="Mixed precision",
        help="Number format of the computation in training. auto: bf16 where the GPU supports it, full precision on "
        "a CPU. fp16: for older GPUs, with loss scaling. no: computes in float32.",
        aliases=("precision", "train_precision", "compute_dtype", "amp"),
    )
    seed: int = setting(
        42,
        ge=0,
        le=2**32 - 1,
        label="Seed",
        help="The same seed and settings give the same first batch, noise and LoRA start, whatever is compiled or "
        "cached.",
        aliases=("training_seed", "random_seed", "manual_seed"),
        basic=True,
    )
    gradient_checkpointing: bool = setting(
        True,
        label="Gradient checkpointing",
        help="Computes each block a second time in the backward pass instead of keeping its activations: much less "
        "memory, about a third more time for a step. Turn it off only if you have enough memory.",
        aliases=("use_gradient_checkpointing", "enable_gradient_checkpointing", "grad_checkpointing"),
        basic=True,
    )
    ema: bool = setting(
        False,
        label="EMA of the LoRA weights",
        help="Saved files, validation and samples use the average (EMA) of the weights over the steps instead of "
        "the latest weights: steadier, most of all at a high learning rate. The training itself does not "
        "change.",
        aliases=("use_ema", "ema_enabled"),
        advanced=True,
    )
    ema_decay: float = setting(
        0.999,
        ge=0,
        lt=1,
        label="EMA decay",
        help="Share of the average that each step keeps. It averages over about 1 / (1 - decay) steps: 0.999 over a "
        "thousand, 0.99 over a hundred. It starts low and rises to this value.",
        aliases=("ema_rate", "ema_beta", "ema_max_decay"),
        advanced=True,
    )
    deterministic: bool = setting(
        False,
        label="Deterministic training",
        help="Uses kernels that give exactly the same numbers in every run on the same machine. Slower. For some "
        "operations torch has no such kernel, and then stops with an error.",
        aliases=("use_deterministic_algorithms", "full_determinism"),
        advanced=True,
    )

    @property
    def batches_per_step(self) -> int:
        """Batches whose mean gradient is a step: of the accumulation, in all processes."""
        return self.gradient_accumulation_steps * self.num_processes

    @property
    def step_limit(self) -> int | None:
        """Optimizer steps asked for: ``max_train_steps``, or 1600 when no length is set; None when epochs rule."""
        return step_limit(self.max_train_steps, self.max_train_epochs)
