"""[training] and [timesteps]: how long, how exact, and which noise levels."""

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

    max_train_steps: int | None = setting(
        None,
        ge=1,
        le=10**9,
        unit="steps",
        label="Steps",
        help="Length of the run in optimizer steps. Empty: 1600, unless epochs are set. 1000 to 2000 do for a "
        "subject of ten to fifty pictures.",
        aliases=("max_steps", "train_steps", "num_train_steps", "total_steps", "steps", "iterations"),
    )
    max_train_epochs: int | None = setting(
        None,
        ge=1,
        le=10**6,
        unit="epochs",
        label="Epochs",
        help="Length of the run in passes over the data set, in place of steps. The plan shows how many steps they "
        "make.",
        aliases=("num_train_epochs", "epochs", "num_epochs", "epoch", "max_epochs"),
    )
    gradient_accumulation_steps: int = setting(
        1,
        ge=1,
        le=10000,
        unit="batches",
        label="Gradient accumulation",
        help="Batches whose gradients are summed before the weights move once: the effect of a larger batch at the "
        "memory of a small one, in more time.",
        aliases=("gradient_accumulation", "grad_accum_steps", "accumulation_steps"),
    )
    mixed_precision: Literal["auto", "bf16", "fp16", "no"] = setting(
        "auto",
        label="Mixed precision",
        help="Number format of the arithmetic in training. auto takes bf16 where the card has it and full "
        "precision on a CPU. fp16 is for older cards, with loss scaling; no computes in float32.",
        aliases=("precision", "train_precision", "compute_dtype", "amp"),
    )
    seed: int = setting(
        42,
        ge=0,
        le=2**32 - 1,
        label="Seed",
        help="Same seed and settings give the same first batch, noise and LoRA start, whatever is compiled or cached.",
        aliases=("training_seed", "random_seed", "manual_seed"),
    )
    gradient_checkpointing: bool = setting(
        True,
        label="Gradient checkpointing",
        help="Computes each block a second time in the backward pass instead of keeping its insides: much less memory, "
        "about 40 % more time a step. Turn it off only when memory is plenty.",
        aliases=("use_gradient_checkpointing", "enable_gradient_checkpointing", "grad_checkpointing"),
    )
    ema: bool = setting(
        False,
        label="Average the weights (EMA)",
        help="Files, validation and samples take the mean of the weights over the steps in place of the last ones: "
        "steadier, above all at a high learning rate. Training itself is the same.",
        aliases=("use_ema", "ema_enabled"),
        advanced=True,
    )
    ema_decay: float = setting(
        0.999,
        ge=0,
        lt=1,
        label="EMA decay",
        help="Share of the mean that each step keeps, so that it reaches over about 1 / (1 - decay) steps: 0.999 over "
        "a thousand, 0.99 over a hundred. It begins low and rises to this.",
        aliases=("ema_rate", "ema_beta", "ema_max_decay"),
        advanced=True,
    )
    deterministic: bool = setting(
        False,
        label="Deterministic",
        help="Asks torch for kernels that give the same bits in every run on the same machine. Slower; some "
        "kernels have no such form and are then refused by torch.",
        aliases=("use_deterministic_algorithms", "full_determinism"),
        advanced=True,
    )

    @property
    def step_limit(self) -> int | None:
        """Optimizer steps asked for: ``max_train_steps``, or 1600 when no length is set; None when epochs rule."""
        return step_limit(self.max_train_steps, self.max_train_epochs)


class TimestepsSection(Section):
    """Which noise levels are trained, and how much each counts. Timesteps run from 0 (clean) to 1000 (noise)."""

    timestep_sampling: Literal["uniform", "sigmoid", "logit_normal", "mode", "shift", "flux_shift"] = setting(
        "shift",
        label="Timestep sampling",
        help="How noise levels are drawn. uniform: all alike; sigmoid, logit_normal and mode: mostly the middle, mode "
        "with the ends kept; shift: sigmoid moved towards much noise by the shift below, the usual choice; flux_shift: "
        "the shift follows the picture's size as the base model's own scheduler has it, FLUX's line or Qwen-Image's "
        "(qwen_shift elsewhere).",
        aliases=("timestep_type", "timestep_sampling_type", "timestep_distribution", "noise_schedule_sampling"),
    )
    sigmoid_scale: float = setting(
        1.0,
        gt=0,
        le=100,
        label="Sigmoid scale",
        help="Spread of the sigmoid in sigmoid, shift and flux_shift: above 1 reaches more extreme noise levels, "
        "below 1 stays nearer the middle.",
        aliases=("sigmoid_spread",),
        advanced=True,
    )
    discrete_flow_shift: float = setting(
        3.0,
        gt=0,
        le=100,
        label="Shift",
        help="How far shift moves the noise levels towards much noise: 1 not at all, 3 for pictures of about 1024 px. "
        "More noise teaches composition, less teaches detail.",
        aliases=("flow_shift", "timestep_shift", "training_shift", "flow_schedule_shift"),
    )
    logit_mean: float = setting(
        0.0,
        ge=-10,
        le=10,
        label="Logit mean",
        help="Middle of logit_normal: above 0 trains more noise, below 0 less; 0 is usual.",
        aliases=("logit_normal_mean",),
        advanced=True,
    )
    logit_std: float = setting(
        1.0,
        gt=0,
        le=10,
        label="Logit spread",
        help="Width of logit_normal: 1 is usual, less stays nearer to its middle.",
        aliases=("logit_normal_std",),
        advanced=True,
    )
    mode_scale: float = setting(
        1.29,
        ge=-1,
        le=1.75,
        label="Mode scale",
        help="How much mode keeps to the middle: 1.29 is usual, 0 draws all alike, below 0 more of both ends.",
        aliases=("mode_sampling_scale",),
        advanced=True,
    )
    stratified: bool = setting(
        False,
        label="Spread levels evenly",
        help="Makes the loss jump less by chance, most at small batches: the noise levels of a step's pictures, and of "
        "some steps in a row, lie evenly over what is drawn above. On the whole the same is trained.",
        aliases=("stratified_sampling", "stratified_timesteps", "num_timestep_buckets"),
        advanced=True,
    )
    weighting_scheme: Literal["none", "sigma_sqrt", "cosmap"] = setting(
        "none",
        label="Loss weighting",
        help="How much each noise level counts in the loss. none counts all alike, as FLUX's authors and most "
        "trainers do; sigma_sqrt and cosmap are those of the Stable Diffusion 3 paper.",
        aliases=("loss_weighting", "weighting", "loss_weight_fn", "loss_scheme"),
        advanced=True,
    )
    min_timestep: float = setting(
        0.0,
        ge=0,
        le=1000,
        label="Lowest timestep",
        help="Noise levels below this are not trained. Raise it to leave fine detail to the base model.",
        aliases=("min_denoising_timestep", "timestep_min"),
        advanced=True,
    )
    max_timestep: float = setting(
        1000.0,
        ge=0,
        le=1000,
        label="Highest timestep",
        help="Noise levels above this are not trained. Lower it to leave composition to the base model.",
        aliases=("max_denoising_timestep", "timestep_max"),
        advanced=True,
    )
