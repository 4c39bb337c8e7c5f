"""Declares [timesteps]: which noise levels are trained, and how much each counts."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


class TimestepsSection(Section):
    """Which noise levels are trained, and how much each counts. Timesteps run from 0 (clean) to 1000 (noise)."""

    timestep_sampling: Literal["uniform", "sigmoid", "logit_normal", "mode", "shift", "flux_shift"] = setting(
        "shift",
        label="Timestep sampling",
        help="How noise levels are chosen. uniform: all equally often. sigmoid, logit_normal and mode: mostly in "
        "the middle; mode keeps more of both ends. shift: sigmoid moved towards much noise by the discrete "
        "flow shift, the usual choice. flux_shift: the shift depends on the image size, as in the base model's "
        "own scheduler, with the values of FLUX or Qwen-Image (qwen_shift in other trainers).",
        aliases=("timestep_type", "timestep_sampling_type", "timestep_distribution", "noise_schedule_sampling"),
    )
    sigmoid_scale: float = setting(
        1.0,
        gt=0,
        le=100,
        label="Sigmoid scale",
        help="Width of the sigmoid in sigmoid, shift and flux_shift: above 1 gives more extreme noise levels, below "
        "1 more of the middle.",
        aliases=("sigmoid_spread",),
        advanced=True,
    )
    discrete_flow_shift: float = setting(
        3.0,
        gt=0,
        le=100,
        label="Discrete flow shift",
        help="How far shift moves the noise levels towards much noise: 1 not at all, 3 for images of about 1024 px. "
        "More noise teaches composition, less noise teaches detail.",
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
        label="Logit std",
        help="Width of logit_normal: 1 is usual, a smaller value stays nearer to the middle.",
        aliases=("logit_normal_std",),
        advanced=True,
    )
    mode_scale: float = setting(
        1.29,
        ge=-1,
        le=1.75,
        label="Mode scale",
        help="How much mode stays in the middle: 1.29 is usual, 0 chooses all levels equally often, below 0 gives "
        "more of both ends.",
        aliases=("mode_sampling_scale",),
        advanced=True,
    )
    stratified: bool = setting(
        False,
        label="Stratified timesteps",
        help="The noise levels of a step's images, and of some steps one after another, are spread evenly, so that "
        "the loss jumps less, most of all with small batches. Over the whole run the same levels are trained.",
        aliases=("stratified_sampling", "stratified_timesteps", "num_timestep_buckets"),
        advanced=True,
    )
    weighting_scheme: Literal["none", "sigma_sqrt", "cosmap"] = setting(
        "none",
        label="Weighting scheme",
        help="How much each noise level counts in the loss. none: all count the same, as in FLUX's training and in "
        "most trainers. sigma_sqrt and cosmap: the weights of the Stable Diffusion 3 paper.",
        aliases=("loss_weighting", "weighting", "loss_weight_fn", "loss_scheme"),
        advanced=True,
    )
    min_timestep: float = setting(
        0.0,
        ge=0,
        le=1000,
        label="Min timestep",
        help="Noise levels below this are not trained. Raise it to keep the fine detail of the base model.",
        aliases=("min_denoising_timestep", "timestep_min"),
        advanced=True,
    )
    max_timestep: float = setting(
        1000.0,
        ge=0,
        le=1000,
        label="Max timestep",
        help="Noise levels above this are not trained. Lower it to keep the composition of the base model.",
        aliases=("max_denoising_timestep", "timestep_max"),
        advanced=True,
    )
    train_experts: Literal["auto", "high", "low", "both"] = setting(
        "auto",
        label="Experts",
        help="Which expert of Wan 2.2 14B is trained. high: the one for high noise, at noise levels from the boundary "
        "on. low: the one for low noise, below it. both: both in one run, by turns, into two LoRA files; the base "
        "model must have both. auto: the file that is chosen, or of a folder the one for high noise, at all noise "
        "levels from min timestep to max timestep.",
        aliases=("expert", "train_expert", "noise_expert"),
    )
    timestep_boundary: float | None = setting(
        None,
        gt=0,
        lt=1,
        label="Expert boundary",
        help="The noise level between the experts of Wan 2.2 14B, as a share: 0.875 is timestep 875. Empty: the "
        "model's own, 0.875 for text to video and 0.9 for image to video.",
        aliases=("boundary_ratio", "expert_boundary"),
        advanced=True,
    )
    switch_boundary_every: int = setting(
        10,
        ge=1,
        le=1_000_000,
        unit="steps",
        label="Switch experts every N steps",
        help="With both experts: how many steps one is trained before it is the other's turn. At each turn the weights "
        "of the base model are exchanged, which takes seconds for a large model, unless most blocks are swapped.",
        aliases=("switch_every", "expert_switch_every"),
        advanced=True,
    )
