"""Declares [timesteps]: which noise levels are trained, and how much each counts."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


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
